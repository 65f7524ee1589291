"""Exact sinks: the first pages of a text keep the compute dtype, and everybody can share them."""

from typing import Any

import numpy as np
import pytest

from tests.engine.harness import Runner, assert_naive, build, model, page_formats, tokens
from workbench.cache.filling import Filling, GroupClasses
from workbench.errors import SettingError
from workbench.model.fetch import cached_path
from workbench.model.load import load_model
from workbench.quality.byte_report import byte_report, prepare
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting
from workbench.quality.run import measure
from workbench.quality.settings_file import format_changes

SIZE = 8


def settings(name: str = "kvquant2", sinks: int = 5, **more: Any) -> dict[str, Any]:
    return {"cache.k_format": name, "cache.v_format": name, "cache.block_size": SIZE,
            "cache.sink_tokens": sinks, "cache.hbm_budget_mib": 0.5} | more  # fmt: skip


@pytest.mark.parametrize(
    "name, residual", [("kvquant2", 0), ("int4", 0), ("kivi2", 0), ("int4", 9)]
)
@pytest.mark.parametrize("grouping", ["model", "head"])
def test_the_first_pages_stay_and_the_others_are_encoded(
    name: str, residual: int, grouping: str
) -> None:
    changes = {"cache.grouping": grouping, "scheduling.chunk_tokens": 11,
               "cache.residual_tokens": residual}  # fmt: skip
    runner = Runner(build(settings(name, 12, **changes)))
    engine = runner.engine
    request_id = runner.add(tokens(30), 30)
    runner.until(lambda: request_id in engine.stack.manager.requests)
    for _ in range(20):
        stored = int(engine.stack.manager.requests[request_id].stored_len[0])
        used, full = -(-stored // SIZE), stored // SIZE
        final = used if name != "kivi2" and not residual else full - -(-residual // SIZE)
        wanted = ["fp32" if page < 2 or page >= final else name for page in range(used)]
        for group in range(len(engine.stack.specs.full)):
            assert page_formats(engine, request_id, group) == wanted
        runner.step()
    runner.drain()
    again = runner.add(tokens(30), 2)
    runner.step()
    assert engine.requests[again].num_cached_tokens >= 2 * SIZE, "sinks are shared"
    runner.drain()


def test_sinks_longer_than_the_text_are_the_full_cache() -> None:
    runner = Runner(build(settings("kvquant2", 512)))
    for seed in range(3):
        assert_naive(model(), tokens(30, seed), runner.one(tokens(30, seed), 20))


def test_their_bytes_are_counted_as_what_they_are() -> None:
    runner = Runner(build(settings("kvquant4", 5)))
    engine = runner.engine
    prepare(engine)
    request_id = runner.add(tokens(40), 20)
    runner.until(lambda: len(runner.outputs[request_id]) == 10)
    specs = engine.stack.specs
    pages = -(-engine.requests[request_id].num_computed_tokens // SIZE)
    report = byte_report(engine, engine.requests[request_id])
    assert report.allocated == specs.exact[0].page_bytes + (pages - 1) * specs.full[0].page_bytes
    assert specs.exact[0].page_bytes > 4 * specs.full[0].page_bytes
    assert report.touched == report.allocated or report.allocated - report.touched < 2 * SIZE * 64
    runner.drain()


def test_new_tokens_of_one_step_go_to_pages_of_two_classes() -> None:
    """A prompt in one chunk and in many is stored alike, byte for byte."""
    found = []
    for chunk in (64, 5):
        runner = Runner(build(settings("int8", 12, **{
            "scheduling.chunk_tokens": chunk, "scheduling.token_budget": 64})))  # fmt: skip
        request_id = runner.add(tokens(30), 4)
        runner.until(lambda r=runner, i=request_id: len(r.outputs[i]) == 1)
        stack = runner.engine.stack
        blocks = stack.manager.requests[request_id]
        rows = [stack.store.read_row(stack.manager.parts(blocks.row_at(page))).copy()
                for page in range(3)]  # fmt: skip
        assert page_formats(runner.engine, request_id) == ["fp32", "fp32", "int8", "int8"]
        found.append(rows)
        runner.drain()
    for one, other in zip(*found, strict=True):
        assert (one == other).mean() > 0.7, "the last bits of numbers may differ, nothing else"


def test_mass_falls_on_the_slots_it_belongs_to() -> None:
    masses = []
    for name, sinks in (("fp32", 0), ("bf16", 12), ("bf16", 0)):
        changes = {"cache.residual_tokens": 9} if sinks else {}
        runner = Runner(build(settings(name, sinks, **changes)))
        request_id = runner.add(tokens(40), 8)
        runner.until(lambda r=runner, i=request_id: len(r.outputs[i]) == 4)
        observer = runner.engine.retainer.observers[request_id]
        masses.append(observer.stored(0, np.arange(40), 40, SIZE).mass)
        runner.drain()
    np.testing.assert_allclose(masses[0], masses[2], rtol=0.05, atol=1e-3)
    # shares of classes are means over heads, so it is close and not equal
    assert np.corrcoef(masses[0], masses[1])[0, 1] > 0.9


def test_they_change_live_and_no_request_is_lost() -> None:
    runner = Runner(build(settings("int8", 0)))
    engine = runner.engine
    first = runner.add(tokens(40), 60)
    runner.step(6)
    for changes in (
        {"cache.sink_tokens": 5}, {"cache.k_format": "kivi2"}, {"cache.sink_tokens": 17},
        {"cache.residual_tokens": 8}, {"cache.k_format": "int4", "cache.residual_tokens": 0},
        {"cache.sink_tokens": 0}, {"cache.sink_tokens": 3, "cache.k_format": "fp32"},
    ):  # fmt: skip
        assert set(engine.apply(changes).kinds.values()) == {"recode"}
        runner.check()
        sinks = -(-engine.config.cache.sink_tokens // SIZE)
        assert page_formats(engine, first)[:sinks] == ["fp32"] * sinks
        runner.step(6)
    second = runner.add(tokens(40), 6)
    runner.drain()
    assert len(runner.outputs[first]) == 60 and len(runner.outputs[second]) == 6


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_they_go_and_come_with_their_request(preemption: str) -> None:
    changes = {"scheduling.preemption": preemption, "tiers.dram_mib": 0.5}
    runner = Runner(build(settings("kvquant4", 12, **changes)))
    engine = runner.engine
    request_id = runner.add(tokens(40), 30)
    runner.step(6)
    engine.scheduler.preempt(engine.requests[request_id], "test")
    engine.stack.pool.drop_idle_rows()  # what was shared has to come from the tier
    runner.until(lambda: request_id in engine.stack.manager.requests)
    runner.step(3)
    assert page_formats(engine, request_id)[:3] == ["fp32", "fp32", "kvquant4"]
    runner.drain()
    assert len(runner.outputs[request_id]) == 30
    assert engine.fetch_counters.num_loaded_pages > 0


def test_two_numbers_of_sinks_are_two_numerics_tags() -> None:
    runner = Runner(build(settings("int4", 5)))
    runner.one(tokens(60), 4)
    assert {row.lineage for row in runner.engine.stack.pool.index.rows()} == {"int4@model/s1"}
    runner.engine.apply({"cache.sink_tokens": 9, "cache.reuse": "exact"})
    request_id = runner.add(tokens(60), 4)
    runner.step()
    assert runner.engine.requests[request_id].num_cached_tokens == 0
    runner.drain()


@pytest.mark.parametrize(
    "stored, new, residual, waiting, sinks",
    [(0, 50, 0, 0, 2), (0, 50, 2, 0, 1), (8, 20, 0, 0, 3), (40, 9, 1, 1, 2), (0, 10, 0, 0, 4)],
)
def test_sinks_are_never_sealed(
    stored: int, new: int, residual: int, waiting: int, sinks: int
) -> None:
    filled = Filling.of(
        0, stored, new, SIZE, residual=residual, num_waiting=waiting, num_exact=sinks
    )
    full = (stored + new) // SIZE
    sealed_before = max(0, stored // SIZE - waiting - sinks)
    assert filled.num_sealed == max(0, full - residual - sinks - sealed_before)
    fresh = GroupClasses(0, 1, 2, sinks).fresh(stored // SIZE, filled)
    exact = dict(fresh.table[2:])[2]
    assert exact == max(0, min(-(-(stored + new) // SIZE), sinks) - stored // SIZE)


REFUSED = [
    ({"retention.level": "token"}, "so retention.level cannot be token: choose page"),
    ({"cache.mode": "off"}, "so cache.mode cannot be off: choose on"),
    ({"cache.allocation": "contiguous"}, "so cache.allocation cannot be contiguous: choose paged"),
    ({"cache.sink_tokens": -2}, "cache.sink_tokens = -2 is out of range: -1 to 1024"),
]  # fmt: skip


@pytest.mark.parametrize("changes, sentence", REFUSED)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    runner = Runner(build(settings("int8", 5)))
    with pytest.raises(SettingError) as error:
        runner.engine.apply(changes)
    assert sentence in str(error.value)
    runner.one(tokens(9), 3)


def kls(loaded: Any, name: str, sinks: tuple[int, ...], plan: QualityPlan) -> list[float]:
    changes = format_changes(name, name)
    reports = measure(loaded, [Setting(name=str(count), changes=changes | {
        "cache.sink_tokens": count}) for count in sinks], plan)  # fmt: skip
    return [report.kl_mean for report in reports]


def test_they_cost_less_quality() -> None:
    plan = QualityPlan(context=96, scored=32, num_windows=1)
    without, some, most = kls(model(), "kvquant2", (0, 48, 112), plan)
    assert 0 < most < some < without


@pytest.mark.long
@pytest.mark.skipif(cached_path() is None, reason="the default model is not fetched")
@pytest.mark.parametrize("name", ["kvquant4", "kvquant2"])
def test_they_cost_less_quality_on_the_real_model(name: str) -> None:
    plan = QualityPlan(context=256, scored=96, num_windows=1)
    without, five = kls(load_model(), name, (0, 5), plan)
    print(name, without, five)
    assert 0 < five <= without
