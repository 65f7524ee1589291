"""Bytes by edge: each is counted between the tiers it really went between, and none is lost."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, pages, tokens
from tests.spatial.conftest import PAGE, Harness
from workbench.cache import row_slices
from workbench.clock import ManualClock
from workbench.engine.views.tier_report import tiers_report
from workbench.spatial.hierarchy.flows import WINDOW_S, Flows

ORDER = ["G1", "G2", "G3", "G3.5", "G4"]


def edges(hierarchy: Any) -> dict[tuple[str, str], int]:
    return {(flow.source, flow.to): flow.num_bytes for flow in hierarchy.flows()}


def assert_balanced(hierarchy: Any) -> None:
    """Edges add up to what each tier counts, and objects to what was really asked of them."""
    found = edges(hierarchy)
    for tier in hierarchy.stats().tiers:
        at = ORDER.index(tier.name)
        down = sum(size for (source, to), size in found.items()
                   if to == tier.name and ORDER.index(source) < at)  # fmt: skip
        up = sum(size for (source, to), size in found.items()
                 if source == tier.name and ORDER.index(to) < at)  # fmt: skip
        assert (down, up) == (tier.stored_bytes, tier.loaded_bytes), tier.name
        if tier.name == "G4" and tier.on:
            assert tier.ios is not None and tier.ios.written_bytes == down
    flows = hierarchy.mover.flows
    assert flows.into("G1") == sum(size for (_, to), size in found.items() if to == "G1")
    assert flows.out_of("G1") == sum(size for (source, _), size in found.items() if source == "G1")


def store(t: Harness, count: int) -> None:
    t.settle()  # what a tier's speed was measured with is no traffic
    for number in range(count):
        t.store(t.key(number))
        t.settle()


def test_what_is_written_through_comes_from_dram(harness: Any, tmp_path: Any) -> None:
    t = harness(8, 8, object_url=str(tmp_path), write="through")
    store(t, 3)
    assert edges(t.h) == {("G1", "G2"): 3 * PAGE, ("G2", "G3"): 3 * PAGE, ("G2", "G4"): 3 * PAGE}
    assert_balanced(t.h)


def test_what_is_evicted_goes_from_tier_to_tier(harness: Any, tmp_path: Any) -> None:
    t = harness(2, 2, object_url=str(tmp_path))
    store(t, 6)
    assert edges(t.h) == {("G1", "G2"): 6 * PAGE, ("G2", "G3"): 4 * PAGE, ("G3", "G4"): 2 * PAGE}
    t.load([t.key(0)])  # from objects into DRAM, which pushes one more page down each step
    t.settle()
    found = edges(t.h)
    assert found["G4", "G2"] == found["G2", "G1"] == PAGE and ("G4", "G3") not in found
    assert_balanced(t.h)


def test_without_dram_pages_come_and_go_past_it(harness: Any) -> None:
    t = harness(0, 8)
    store(t, 2)
    t.load([t.key(0), t.key(1)])
    assert edges(t.h) == {("G1", "G3"): 2 * PAGE, ("G3", "G1"): 2 * PAGE}
    assert_balanced(t.h)


def test_what_comes_ahead_of_its_request_stays_in_dram(harness: Any) -> None:
    t = harness(2, 8)
    store(t, 4)
    job = t.h.submit_load([t.key(0)], compute_s=np.inf, ahead=True)
    t.result(job)
    t.h.complete_load(job)
    t.settle()
    found = edges(t.h)
    assert found["G3", "G2"] == PAGE and ("G2", "G1") not in found
    assert_balanced(t.h)


def test_a_read_by_layers_goes_straight_into_hbm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_slices, "LEAST_SLICE_BYTES", 1)
    runner = Runner(build({"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": pages(2),
                           "tiers.disk_mib": 1.0, "tiers.load": "layerwise"}))  # fmt: skip
    for seed in (1, 2, 1):
        runner.one(tokens(96, seed), 4)
        runner.engine.hierarchy.wait_io()
    assert tiers_report(runner.engine).overlap is not None
    found = edges(runner.engine.hierarchy)
    assert found["G3", "G1"] > 0 and found.get(("G3", "G2"), 0) == 0
    assert_balanced(runner.engine.hierarchy)
    told = {(flow.source, flow.to): flow.num_bytes for flow in tiers_report(runner.engine).flows}
    assert told == found
    runner.engine.close()


@settings(deadline=None, max_examples=12)
@given(
    st.sampled_from(["back", "through", "selective"]),
    st.sampled_from([(0, 3), (2, 0), (2, 3)]),
    st.sampled_from(["inclusive", "exclusive"]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=40),
)
def test_edges_add_up_to_the_tiers_own_totals(
    tmp_path_factory: pytest.TempPathFactory, write: str, sizes: tuple[int, int], inclusive: str,
    calls: list[tuple[bool, int]],
) -> None:  # fmt: skip
    folder = str(tmp_path_factory.mktemp("objects"))
    t = Harness(*sizes, ManualClock(), object_url=folder, write=write, write_hits=1,
                inclusive=inclusive)  # fmt: skip
    try:
        t.settle()
        for loads, number in calls:
            if loads:
                t.load([t.key(number), t.key(number + 1)])
            else:
                t.store(t.key(number))
            t.settle()
        assert_balanced(t.h)
    finally:
        t.h.close()


def test_rates_are_of_the_last_seconds() -> None:
    clock = ManualClock()
    flows = Flows(clock.now_s)
    clock.advance(4.0)
    flows.moved("G1", "G2", 100)
    assert flows.edges()[0].bytes_per_s == 100 / 4.0, "since the start, where that is later"
    clock.advance(WINDOW_S - 1.0)
    flows.moved("G1", "G2", 50)
    (flow,) = flows.edges()
    assert (flow.num_bytes, flow.bytes_per_s) == (150, 150 / WINDOW_S)
    clock.advance(1.0)
    assert flows.edges()[0].bytes_per_s == 50 / WINDOW_S, "the first has left the window"
    clock.advance(WINDOW_S)
    (flow,) = flows.edges()
    assert (flow.num_bytes, flow.bytes_per_s) == (150, 0.0)
