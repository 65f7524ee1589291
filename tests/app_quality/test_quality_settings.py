"""Which settings a sweep measures, what a file may hold, and what applying one changes."""

import json
from dataclasses import fields

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.quality import files, settings
from app.quality.figures import head_counts, heads_bytes
from app.quality.jobs import Result
from app.quality.pareto import LOOKS, frontier, pareto_figure, place_labels
from app.text import load_texts
from workbench.config import EngineConfig, get_setting, replace_settings
from workbench.errors import SettingError
from workbench.quality import engines, job_protocol, probes
from workbench.quality.job_protocol import ModelLine, check_setting, quality_changes
from workbench.quality.results import ByteReport, QualityReport, Setting
from workbench.settings.formats import KV_FORMATS


def test_every_format_and_policy_can_be_measured() -> None:
    sweep = settings.format_settings() + settings.retention_settings(256)
    sweep += settings.sparse_settings()
    for setting in sweep:
        check_setting(setting)
    assert {name for item in sweep for name in item.changes.values()} >= set(KV_FORMATS)
    assert all(settings.family_of(item.changes) != "other" for item in sweep)
    assert set(map(settings.family_of, (item.changes for item in sweep))) <= set(LOOKS)
    shapes = [symbol for symbol, _ in LOOKS.values()]
    assert len(shapes) == len(set(shapes)), "colour alone tells too little"


def test_what_the_protocol_repeats_without_torch() -> None:
    probed = {item.name for item in fields(probes.Probes)} - {"k_channel_max"}
    assert set(job_protocol.ProbesLine.__struct_fields__) == probed
    assert set(job_protocol.LAB_SETTINGS) == set(engines.OWN)


def test_a_running_engines_setting_is_measured_without_the_lab_own() -> None:
    config = replace_settings(
        EngineConfig(),
        {"cache.k_format": "int8", "scheduling.token_budget": 64, "tiers.dram_mib": 32.0,
         "retention.policy": "h2o"},
    )  # fmt: skip
    assert quality_changes(config) == {"cache.k_format": "int8", "retention.policy": "h2o"}


@given(st.sampled_from(settings.format_settings() + settings.retention_settings(512)
                       + settings.sparse_settings()),
       st.sampled_from(settings.format_settings()))  # fmt: skip
def test_applying_a_setting_gives_what_was_measured(measured: Setting, running: Setting) -> None:
    config = replace_settings(EngineConfig(), running.changes)
    changes = settings.changes_to_apply(measured.changes, config)
    after = replace_settings(config, changes)
    wanted = replace_settings(EngineConfig(), measured.changes)
    for path in job_protocol.QUALITY_SETTINGS:
        assert get_setting(after, path) == get_setting(wanted, path)
    assert settings.changes_to_apply(measured.changes, after) == {}


def test_a_file_in_json_and_toml_reads_alike() -> None:
    as_json = json.dumps([{"name": "a", "cache.k_format": "int8"}]).encode()
    as_toml = b'[[setting]]\nname = "a"\ncache.k_format = "int8"\n'
    expected = settings.FileSettings([Setting(name="a", changes={"cache.k_format": "int8"})], [])
    assert settings.read_file("a.json", as_json) == expected
    assert settings.read_file("a.toml", as_toml) == expected


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.json", b"{", "is no JSON or TOML"),
        ("a.json", b"\xff\xfe", "is no JSON or TOML"),
        ("a.json", b"[" * 60000, "is no JSON or TOML"),
        ("a.toml", b"= 1", "is no JSON or TOML"),
        ("a.json", b"{}", "holds no list of settings"),
        ("a.json", b"[]", "holds no list of settings"),
        ("a.json", b" " * (64 * 1024 + 1), "larger than 64 KiB"),
        ("a.json", json.dumps([{"name": str(n)} for n in range(65)]).encode(),
         "has 65 settings: give at most 64"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_sentence(name: str, data: bytes, told: str) -> None:
    with pytest.raises(SettingError, match=told) as refused:
        settings.read_file(name, data)
    assert "\n" not in str(refused.value)


def test_each_bad_entry_of_a_file_is_named() -> None:
    entries = [
        {"name": "good", "cache.v_format": "int4"},
        {"cache.k_format": "int8"},
        {"name": "good"},
        {"name": "unknown", "cache.format": "int8"},
        {"name": "range", "retention.budget_tokens": 1},
        {"name": "lab", "scheduling.token_budget": 64},
        {"name": "weights", "model.weight_format": "int8"},
        {"name": "current"},
        "word",
        {"name": "odd", "cache.k_format": ["int8"]},
    ]
    read = settings.read_file("a.json", json.dumps(entries).encode())
    assert [item.name for item in read.settings] == ["good"]
    expected = ["setting 2 has no name", "'good' is there twice", "unknown setting",
                "out of range", "quality lab's own", "changes the weights", "engine's own",
                "setting 9 has no name", "is not allowed"]  # fmt: skip
    assert len(read.problems) == len(expected)
    for problem, told in zip(read.problems, expected, strict=True):
        assert told in problem


def made_report(name: str, kl: float, allocated: int) -> QualityReport:
    """A report of given KL and bytes, as a job would send it."""
    size = ByteReport(
        allocated=allocated, live=allocated, metadata=0, touched=allocated,
        bits_per_element=8.0, ratio_to_bf16=2.0, tokens_per_mib=1.0, tokens_stored=10.0,
        num_tokens=10,
    )  # fmt: skip
    return QualityReport(
        name=name, changes={"cache.k_format": "int8", "cache.v_format": "int8"},
        full_format="bf16", num_windows=1, num_scored_tokens=4, context=8, seed=0, kl_mean=kl,
        kl_low=None, kl_high=None, kl_p99=kl, kl_by_offset=[kl, None], top1=1.0, top5=1.0,
        perplexity_full=2.0, perplexity=2.0, perplexity_diff=0.0, perplexity_diff_low=None,
        perplexity_diff_high=None, first_divergence=[-1], num_flips=0, flips=[], bytes=size,
        needle=[], seconds=1.0, notes=[],
    )  # fmt: skip


def made_result(name: str, kl: float, allocated: int) -> Result:
    return Result(made_report(name, kl, allocated), "bf16", 1, live=False)


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(0, 10)), min_size=1, max_size=30))
def test_the_frontier_is_what_no_other_beats(points: list[tuple[float, float]]) -> None:
    chosen = frontier(points)
    assert chosen
    for index in chosen:
        x, y = points[index]
        assert not any((a < x and b <= y) or (a <= x and b < y) for a, b in points)
    for index, (x, y) in enumerate(points):
        if index not in chosen:
            assert any(points[i][0] <= x and points[i][1] <= y for i in chosen)


def test_a_plot_of_one_exact_point_and_of_many() -> None:
    texts = load_texts()
    for results in (
        [made_result("exact", 0.0, 100)],
        [made_result(f"s{n}", n / 100, 100 - n) for n in range(30)],
    ):
        figure = pareto_figure(texts, results, "s3")
        names = {data[0] for trace in figure.data for data in trace.customdata or ()}
        assert names == {item.report.name for item in results}
        assert all(y > 0 for trace in figure.data for y in trace.y or ())


def test_labels_do_not_lie_over_each_other() -> None:
    assert place_labels([], []) == []
    points = [(100.0, 0.1)] * 12
    places = [place for place in place_labels(["fp8_e4m3_token"] * 12, points) if place]
    assert len(places) == len(set(places)) <= 6


def test_downloads() -> None:
    results = [made_result("=1+1", 0.5, 100), made_result("b", 0.0, 10)]
    lines = files.as_csv(results).splitlines()
    assert len(lines) == 3 and lines[1].startswith("'=1+1,integer"[:7])
    loaded = msgspec.json.decode(files.as_json(results), type=list[Result])
    assert loaded == results
    assert files.as_csv([]).strip() == "name"


def test_bytes_of_grouped_heads() -> None:
    model = ModelLine(name="m", weight_format="bf16", num_layers=30, num_heads=9, num_kv_heads=3,
                      head_dim=64)  # fmt: skip
    assert head_counts(model) == [1, 3, 9]
    assert [heads_bytes(model, n) for n in (1, 3, 9)] == [256, 768, 2304]
