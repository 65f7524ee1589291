"""Loads by layers: the same tokens as without tiers, whatever comes late, damaged or not at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.cache import row_slices
from workbench.spatial.hierarchy.faults import FAULTS, inject

LAYERS = 4
PROMPTS = [tokens(60, seed) for seed in range(4)]
TIERS: dict[str, dict[str, Any]] = {
    "dram": {"tiers.dram_mib": 8.0},
    "disk": {"tiers.disk_mib": 8.0},
    "dram+disk": {"tiers.dram_mib": 0.05, "tiers.disk_mib": 8.0},
    "store": {"tiers.shared": "store", "tiers.shared_mib": 8.0},
}


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_slices, "LEAST_SLICE_BYTES", 1)


def runner_of(changes: dict[str, Any], budget_pages: int = 24) -> Runner:
    base = {"cache.hbm_budget_mib": pages(budget_pages, LAYERS), "tiers.load": "layerwise"}
    return Runner(build(base | changes, num_layers=LAYERS))


def outputs(runner: Runner, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    found = []
    for prompt in prompts:
        found.append(runner.one(prompt, 5))
        runner.engine.hierarchy.wait_io()
    return found


def count_layered(runner: Runner) -> list[int]:
    """A list that gets the number of pages of each load by layers from now on."""
    layers, counts = runner.engine.fetcher.layers, []
    finish = layers.finish

    def counted() -> Any:
        loads = finish()
        counts.extend(load.found.num_pages for load in loads)
        return loads

    layers.finish = counted  # type: ignore[method-assign]
    return counts


@pytest.mark.parametrize("grouping", ["model", "halves", "layer", "head"])
@pytest.mark.parametrize("where", list(TIERS))
def test_tokens_are_those_of_the_naive_loop(where: str, grouping: str, tmp_path: Path) -> None:
    runner = runner_of(TIERS[where] | {"cache.grouping": grouping})
    counts = count_layered(runner)
    first = outputs(runner)
    again = outputs(runner)
    assert again == first
    for prompt, output in zip(PROMPTS, first, strict=True):
        assert_naive(model(LAYERS), prompt, output)
    assert sum(counts) > 20 and runner.engine.fetch_counters.num_failed_pages == 0
    runner.engine.hierarchy.check_integrity(strict=True)
    runner.engine.close()


@pytest.mark.parametrize("fmt", ["int8", "fp8_e4m3", "int4"])
def test_packed_pages_come_as_they_were(fmt: str) -> None:
    formats = {"cache.k_format": fmt, "cache.v_format": fmt}
    whole = runner_of(TIERS["disk"] | formats | {"tiers.load": "whole"}, 17)
    layered = runner_of(TIERS["disk"] | formats, 17)
    many = [tokens(60, seed) for seed in range(10)]
    counts = count_layered(layered)
    expected = [outputs(whole, many), outputs(whole, many)]
    assert [outputs(layered, many), outputs(layered, many)] == expected
    assert sum(counts) > 20
    whole.engine.close()
    layered.engine.close()


def test_objects_come_by_ranges(tmp_path: Path) -> None:
    runner = runner_of({"tiers.object_url": str(tmp_path)})
    counts = count_layered(runner)
    assert outputs(runner) == outputs(runner)
    assert sum(counts) > 20
    runner.engine.close()


@pytest.mark.parametrize("kind", FAULTS)
def test_damaged_slices_take_the_step_back(kind: str) -> None:
    runner = runner_of(TIERS["disk"] | ({"tiers.dram_mib": 8.0} if "dram" in kind else {}))
    counts, expected = count_layered(runner), outputs(runner)
    draw, hierarchy = np.random.default_rng(3), runner.engine.hierarchy
    for _ in range(40):
        inject(hierarchy, kind, draw)
    for _ in range(2):
        assert outputs(runner) == expected
    faults = sum(sum(tier.faults.values()) for tier in hierarchy.stats().tiers)
    assert faults > 0 and counts
    reasons = [e.data.get("reason") for e in runner.engine.events_since(0) if e.kind == "preempt"]
    assert "lost_pages" in reasons
    runner.engine.close()


def test_a_step_taken_back_leaves_the_others_right() -> None:
    """Another request runs in the very step that turns out to have read damaged bytes."""
    runner = runner_of(TIERS["disk"] | {"tiers.gate": False}, 40)
    expected = outputs(runner)
    runner.engine.stack.pool.drop_idle_rows()
    runner.engine.hierarchy.wait_io()
    draw = np.random.default_rng(0)
    for _ in range(60):
        inject(runner.engine.hierarchy, "corrupt_disk", draw)
    ids = [runner.add(prompt, 5) for prompt in PROMPTS]
    runner.drain()
    assert [runner.outputs[each] for each in ids] == expected
    runner.engine.close()


def test_nothing_is_published_before_the_step_has_ended() -> None:
    runner = runner_of(TIERS["disk"], 60)
    expected = outputs(runner, PROMPTS[:1])[0]
    runner.engine.stack.pool.drop_idle_rows()
    runner.engine.hierarchy.wait_io()
    twins = [runner.add(PROMPTS[0], 5) for _ in range(2)]
    layers, found = runner.engine.fetcher.layers, []
    begin = layers.begin

    def begun(request: Any, parts: Any) -> None:
        keys = layers.expected(request).keys
        begin(request, parts)
        found.append(runner.engine.stack.pool.index.get(keys[0]))

    layers.begin = begun  # type: ignore[method-assign]
    runner.drain()
    assert found[:1] == [None]
    assert [runner.outputs[each] for each in twins] == [expected, expected]
    runner.engine.close()


def test_a_tier_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(TIERS["disk"] | {"tiers.disk_throttle_mb_s": 0.0})
    expected = outputs(runner)
    runner.engine.apply({"tiers.disk_throttle_mb_s": 0.0005})
    runner.engine.fetcher.layers.most_s = 0.02
    assert outputs(runner, PROMPTS[:1]) == expected[:1]
    assert runner.engine.fetch_counters.num_late_loads > 0
    runner.engine.apply({"tiers.disk_throttle_mb_s": 0.0})
    runner.engine.close()


def test_a_throttled_tier_holds_each_slice_back() -> None:
    runner = runner_of(TIERS["disk"])
    expected = outputs(runner)
    runner.engine.apply({"tiers.disk_throttle_mb_s": 1.0})
    assert outputs(runner, PROMPTS[:1]) == expected[:1]
    last = runner.engine.fetcher.layers.last
    assert last is not None and [span.number for span in last.loads] == list(range(LAYERS))
    sizes = [span.end_s - span.start_s for span in last.loads]
    assert min(sizes) > 0 and last.loads[-1].end_s >= 14 * pages(1, LAYERS) * 2**20 / 1e6
    assert [wait[0] for wait in last.waits] == list(range(LAYERS))
    runner.engine.close()


def test_what_cannot_be_admitted_is_loaded_as_a_whole() -> None:
    """The head of the queue does not fit while another runs; its pages come up meanwhile."""
    runner = runner_of(TIERS["dram"], 24)
    expected = outputs(runner)
    long = runner.add(tokens(40, 9), 40)
    runner.step(2)
    waiting = runner.add(PROMPTS[0], 5)
    runner.drain()
    assert runner.outputs[waiting] == expected[0] and len(runner.outputs[long]) == 40
    runner.engine.close()


def test_an_abort_while_the_load_waits_releases_it() -> None:
    runner = runner_of(TIERS["disk"], 24)
    outputs(runner)
    runner.add(tokens(40, 9), 40)
    runner.step(2)
    waiting = runner.add(PROMPTS[0], 5)
    runner.step()
    runner.engine.abort(waiting)
    runner.drain()
    runner.engine.hierarchy.wait_io()
    runner.engine.hierarchy.check_integrity(strict=True)
    runner.engine.close()


def test_without_room_on_the_way_it_loads_as_a_whole_what_there_is_room_for() -> None:
    runner = runner_of(TIERS["store"])
    expected = outputs(runner)
    staging = runner.engine.hierarchy.mover.staging
    staging.capacity_bytes = 2 * runner.engine.stack.specs.full[0].page_bytes
    assert outputs(runner) == expected
    counters = runner.engine.fetch_counters
    assert counters.num_failed_pages > 0 and counters.num_loaded_pages > 0
    runner.engine.close()


@pytest.mark.parametrize("aborted", [False, True])
def test_a_step_that_breaks_off_leaves_nothing_in_flight(
    aborted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(TIERS["disk"])
    expected = outputs(runner)
    decoder = runner.engine.model.decoder
    whole, calls = decoder.forward, []

    def broken(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the device went away")
        return whole(*args, **more)

    monkeypatch.setattr(decoder, "forward", broken)
    request = runner.add(PROMPTS[0], 5)
    with pytest.raises(RuntimeError, match="went away"):
        runner.engine.step()
    assert len(runner.engine.hierarchy.jobs) == 1
    if aborted:
        runner.engine.abort(request)
        assert len(runner.engine.hierarchy.jobs) == 0
    runner.drain()
    assert aborted or runner.outputs[request] == expected[0]
    runner.engine.hierarchy.check_integrity(strict=True)
    runner.engine.close()


def test_slices_divide_the_layers_evenly() -> None:
    stack = build(num_layers=LAYERS).stack
    slices = row_slices.row_slices(stack.geometry, stack.specs.full)
    assert (slices.layers, slices.num_layers) == (1, LAYERS)
    spec = stack.specs.full[0]
    places = [list(slices.places([(100, spec)], at)) for at in range(LAYERS)]
    assert places == [[(100 + at * spec.layer_bytes, spec.layer_bytes)] for at in range(LAYERS)]
    assert slices.count([(0, spec)]) == LAYERS


def test_a_row_without_a_page_of_each_group_is_one_slice() -> None:
    stack = build({"cache.grouping": "halves"}, num_layers=LAYERS).stack
    slices = row_slices.row_slices(stack.geometry, stack.specs.full)
    first, second = ((0, spec) for spec in stack.specs.full)
    assert slices.count([first, second]) == LAYERS and slices.count([second]) == 1
