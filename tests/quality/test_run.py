"""The lab end to end on a random model: exact zeros, real bytes, refusals, stopping."""

import msgspec
import numpy as np
import pytest

from workbench.errors import RequestError, SettingError
from workbench.quality.plan import QualityPlan
from workbench.quality.results import QualityReport, Setting
from workbench.quality.run import measure
from workbench.quality.settings_file import default_sweep, format_changes
from workbench.settings.formats import GROUPED_FORMATS, KV_FORMATS

PLAN = QualityPlan(context=256, scored=64, num_windows=2, num_bootstrap=100)
EXACT = {"cache.k_format": "fp32", "cache.v_format": "fp32"}


def evicting(policy: str = "sink+window", **more) -> dict:
    changes = {f"retention.{name}": value for name, value in more.items()}
    return EXACT | {"retention.policy": policy, "retention.budget_tokens": 128} | changes


def one(model, changes: dict, plan: QualityPlan = PLAN) -> QualityReport:
    (report,) = measure(model, [Setting(name="it", changes=changes)], plan)
    return report


@pytest.mark.parametrize(
    "changes",
    [
        EXACT,
        EXACT | {"cache.grouping": "head"},
        EXACT | {"cache.block_size": 8},
        evicting() | {"retention.budget_tokens": 4096},  # never reached
    ],
    ids=["formats", "grouping", "pages", "budget"],
)
def test_identity_costs_exactly_nothing(model, changes: dict):
    report = one(model, changes)
    assert report.kl_mean == report.kl_p99 == report.kl_high == 0.0
    assert report.top1 == report.top5 == 1.0
    assert report.perplexity == report.perplexity_full and report.perplexity_diff == 0.0
    assert report.first_divergence == [-1, -1] and not report.flips
    assert report.num_scored_tokens == 2 * 64
    assert report.notes == ["nothing was compressed or evicted: every position counts"]


def test_coarser_formats_cost_more(model):
    names = ("int8", "fp8_e4m3", "int4")
    settings = [Setting(name=name, changes=format_changes(name, name)) for name in names]
    kl = [report.kl_mean for report in measure(model, settings, PLAN)]
    assert 0 < kl[0] < kl[1] < kl[2]


@pytest.mark.parametrize("name", KV_FORMATS)
def test_bytes_are_those_of_the_arena(model, name: str):
    report = one(model, format_changes(name, name))
    size = report.bytes
    assert size.num_tokens == size.tokens_stored == 320
    waiting = 0
    if name in GROUPED_FORMATS:  # a step's tokens wait in fp32 pages until these are full
        waiting = 128 * 2 * 2 * 2 * 16 * 4
    assert size.touched == size.allocated + waiting
    assert size.bits_per_element == pytest.approx(size.allocated * 8 / (320 * 2 * 2 * 2 * 16))
    assert size.ratio_to_bf16 == pytest.approx(16 / size.bits_per_element)
    assert 0 <= size.metadata < size.live <= size.allocated


def test_an_unfinished_page_is_counted_in_its_own_format(model):
    plan = msgspec.structs.replace(PLAN, scored=50)  # 306 tokens: 18 wait for their page
    size = one(model, format_changes("kivi4", "kivi4"), plan).bytes
    page = 2 * 2 * 2 * 16 * 32 * 4  # fp32
    sealed = one(model, format_changes("kivi4", "kivi4")).bytes.allocated // 10
    assert size.allocated == 9 * sealed + page
    assert size.live == 9 * sealed + page * 18 // 32


@pytest.mark.parametrize("policy", ["sink+window", "attention-mass", "snapkv", "h2o"])
def test_evicted_tokens_are_seen_in_bytes_and_kl(model, policy: str):
    report = one(model, evicting(policy, window_tokens=32, sink_tokens=16))
    assert report.kl_mean > 0
    assert report.bytes.tokens_stored <= 128 + 32
    assert report.bytes.ratio_to_bf16 > 0.5


def test_a_policy_for_the_prompt_acts_where_the_context_ends(model):
    report = one(model, evicting("snapkv", window_tokens=32, sink_tokens=16, when="prefill"))
    assert report.bytes.tokens_stored == 128 + 64
    assert report.num_scored_tokens == 2 * 63  # the context's own last row read everything


def test_exact_prefill_compresses_only_what_follows(model):
    plan = msgspec.structs.replace(PLAN, exact_prefill=True)
    late, early = (
        one(model, format_changes("int4", "int4"), plan),
        one(model, format_changes("int4", "int4")),
    )
    assert 0 < late.kl_mean != early.kl_mean
    assert late.num_scored_tokens == 2 * 63 and early.num_scored_tokens == 2 * 64
    assert late.bytes.allocated == early.bytes.allocated


def test_the_curve_has_a_value_for_each_offset(model):
    report = one(model, format_changes("int4", "int4"))
    assert len(report.kl_by_offset) == 64
    assert report.kl_mean == pytest.approx(np.mean(report.kl_by_offset))
    assert report.num_flips == len(report.flips) == round((1 - report.top1) * 128)
    assert all(255 <= flip.position < 319 for flip in report.flips)


def test_a_report_survives_json(model):
    plan = msgspec.structs.replace(PLAN, needle=True, context=400)
    report = one(model, format_changes("int8", "int8"), plan)
    assert [item.depth for item in report.needle] == [0, 0.25, 0.5, 0.75, 1]
    assert all(item.logprob < 0 and item.logprob_full < 0 for item in report.needle)
    assert msgspec.json.decode(msgspec.json.encode(report), type=QualityReport) == report


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cache.k_fromat": "int8"}, "unknown setting 'cache.k_fromat'"),
        ({"cache.k_format": "int5"}, "cache.k_format = 'int5' is not allowed"),
        ({"model.weight_format": "fp32"}, "model.weight_format changes the weights"),
        ({"scheduling.chunk_tokens": 1}, "scheduling.chunk_tokens is the quality lab's own"),
        (
            {
                "retention.policy": "snapkv",
                "retention.window_tokens": 256,
                "retention.budget_tokens": 272,
            },
            "retention.window_tokens = 256 covers the whole context of 256 tokens: choose a",
        ),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_runs(model, changes: dict, sentence: str):
    told: list[str] = []
    settings = [Setting(name="good", changes={}), Setting(name="bad", changes=changes)]
    with pytest.raises(SettingError, match=sentence):
        measure(model, settings, PLAN, lambda share, text: told.append(text))
    assert not told


def test_a_cache_too_small_for_a_window_is_refused_with_the_numbers(model):
    with pytest.raises(RequestError, match="needs .* blocks and the whole pool has"):
        one(model, EXACT | {"cache.hbm_budget_mib": 0.0625})


def test_stopping_keeps_what_all_settings_have_done(model):
    settings = [Setting(name=name, changes=format_changes(name, name)) for name in ("int8", "int4")]
    told: list[tuple[float, str]] = []
    reports = measure(
        model, settings, PLAN, lambda *said: told.append(said), lambda: len(told) >= 5
    )  # window 2 begins with the fifth run
    assert [report.num_windows for report in reports] == [1, 1]
    assert told[0] == (0.0, "window 1: full cache") and told[-1][0] < 1
    assert measure(model, settings, PLAN, cancelled=lambda: True) == []


def test_progress_rises_to_one(model):
    told: list[float] = []
    settings = [Setting(name="int8", changes=format_changes("int8", "int8"))]
    measure(model, settings, PLAN, lambda share, text: told.append(share))
    assert told == sorted(told) and told[0] == 0 and told[-1] == 1


def test_the_default_sweep_has_every_format_and_k4v2():
    names = [setting.name for setting in default_sweep()]
    assert set(KV_FORMATS) <= set(names)
