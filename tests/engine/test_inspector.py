"""What the inspector tells of a block, against the engine's own tables."""

import os
from pathlib import Path

import numpy as np
import pytest

from workbench.cache.keys import PrivateKey
from workbench.clock import ManualClock
from workbench.snapshot import Snapshot, decode_frame
from workbench.spatial.hierarchy.patience import RETRY_S
from workbench.views import BlockView

from .harness import Runner, build, pages, tokens

TIER = {"tiers.dram_mib": 1.0}


def look(runner: Runner) -> tuple[Snapshot, list[dict[str, np.ndarray]], np.ndarray]:
    return decode_frame(runner.engine.frame(1, state="running"))


def entries(runner: Runner, tier: str = "G2") -> list[BlockView]:
    """Every entry of a lower tier as the inspector shows it."""
    _, cells, _ = look(runner)
    state = cells[("G1", "G2", "G3").index(tier)]["state"]
    return [runner.engine.inspect(tier, int(cell)) for cell in np.flatnonzero(state & 7)]


@pytest.fixture(scope="module")
def evicted() -> Runner:
    """A request of which tokens 4 to 39 are gone: 4 sinks and the newest ones are stored."""
    window = {"retention.sink_tokens": 4, "retention.window_tokens": 12,
              "retention.budget_tokens": 16}  # fmt: skip
    runner = Runner(build({"retention.policy": "sink+window"} | window))
    runner.add(tokens(48), 24)
    runner.until(lambda: next(iter(runner.engine.requests.values())).num_output_tokens >= 4)
    return runner


def test_positions_after_an_eviction_are_those_of_the_tables(evicted: Runner) -> None:
    snapshot, _, table = look(evicted)
    (request,) = snapshot.requests
    blocks = evicted.engine.stack.manager.requests[request.request_id]
    stored = int(blocks.stored_len[0])
    assert request.num_evicted_tokens > 20 and len(request.page_tokens) == request.num_pages
    for page, cell in enumerate(table):
        held = blocks.pos[0, 4 * page : max(4 * page + 1, min(stored, 4 * page + 4))]
        assert request.page_tokens[page] == [held[0], held[-1]]
        view = evicted.engine.inspect("G1", int(cell))
        assert [view.first_token, view.last_token] == request.page_tokens[page]
    assert request.page_tokens[0] == [0, 3] and request.page_tokens[1][0] > 20


def test_without_evictions_positions_follow_from_the_page() -> None:
    runner = Runner(build())
    runner.add(tokens(20), 8)
    runner.step(3)
    assert look(runner)[0].requests[0].page_tokens == []


@pytest.mark.parametrize("grouping", ["halves", "layer"])
def test_every_owned_cell_has_its_owners_whatever_the_group(grouping: str) -> None:
    runner = Runner(build({"cache.grouping": grouping}))
    shared = tokens(16, 1)
    for seed in (2, 3):
        runner.add(shared + tokens(6, seed), 12)
        runner.step(3)
    _, cells, _ = look(runner)
    owned = np.flatnonzero(cells[0]["state"] & 7 == 2)
    views = [runner.engine.inspect("G1", int(cell)) for cell in owned]
    assert len(views) > 10 and all(len(view.owners) == view.ref_cnt for view in views)
    assert {len(view.owners) for view in views} == {1, 2}
    assert all(view.first_token == 4 * view.page_index for view in views)


def test_an_entry_keeps_the_format_and_bytes_it_was_stored_with() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)} | TIER))
    before = look(runner)[0].grid[1].num_cells
    for seed in range(3):
        runner.one(tokens(80, seed), 4)
    stored = entries(runner)
    page_bytes = runner.engine.stack.specs.full[0].page_bytes
    assert len(stored) > 5 and {view.num_bytes for view in stored} == {page_bytes}
    runner.engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
    assert {view.label for view in entries(runner)} == {"fp32@model"}
    assert {view.num_bytes for view in entries(runner)} == {page_bytes}
    for seed in range(5, 10):
        runner.one(tokens(80, seed), 4)
    labels = {(view.label, view.num_bytes) for view in entries(runner)}
    assert {label for label, _ in labels} >= {"fp32@model", "int8@model"}
    assert dict(labels)["int8@model"] < dict(labels)["fp32@model"] == page_bytes
    snapshot, _, _ = look(runner)
    grid, names = snapshot.grid[1], [page_class.label for page_class in snapshot.classes]
    assert grid.num_cells > before, "room for more of the smaller blocks"
    assert sum(count for _, count in grid.cell_classes) == grid.num_cells
    assert {names[index] for index, _ in grid.cell_classes} == {"fp32", "int8"}


def test_an_entry_says_parent_position_and_last_access() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)} | TIER))
    prompt = tokens(60, 7)
    runner.one(prompt, 4)
    for seed in range(3):
        runner.one(tokens(90, seed), 4)
    engine = runner.engine
    chain = engine.finished[next(iter(engine.finished))].chain_keys
    keys = [key.hex() for key in engine.stack.manager.keys.row_keys(
        next(iter(engine.finished.values())), "fp32@model")]  # fmt: skip
    assert len(chain) == len(keys) >= 6
    found = {view.key: view for view in entries(runner) if view.key in keys}
    assert len(found) >= 4
    for key, view in found.items():
        page = keys.index(key)
        assert (view.page_index, view.first_token) == (page, 4 * page)
        assert view.parent_key == (keys[page - 1] if page else "")
        assert 0 < view.last_used_step < engine.num_steps and view.why == "stored"
        assert 1 <= view.evict_rank <= view.num_evictable
    first = found[keys[0]]
    runner.one(prompt, 4)  # comes up again
    again = {view.key: view for view in entries(runner)}[keys[0]]
    assert again.last_used_step > first.last_used_step


def test_a_swapped_page_names_its_request() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32), "scheduling.preemption": "swap",
                           "retention.policy": "attention-mass"} | TIER))  # fmt: skip
    for seed in range(3):
        runner.add(tokens(40, seed), 40)
    engine = runner.engine
    runner.until(lambda: any(
        isinstance(row[0], PrivateKey) for row in engine.hierarchy.entries("G2")))  # fmt: skip
    snapshot, cells, _ = look(runner)
    private = [view for view in entries(runner) if view.why == "private"]
    assert private
    for view in private:
        (request_id,) = view.owners
        slot = cells[1]["owner"][view.cell]
        assert snapshot.owner_labels[str(slot)] == request_id
        assert view.first_token == 4 * view.page_index and view.label == "fp32@model"
        assert view.mass is not None and view.num_bytes > 0


def test_a_tier_that_always_fails_says_so_and_recovers(tmp_path: Path) -> None:
    clock = ManualClock()
    runner = Runner(build({"cache.hbm_budget_mib": pages(32), "tiers.disk_mib": 1.0,
                           "tiers.disk_path": str(tmp_path)}, clock=clock))  # fmt: skip
    disk = runner.engine.hierarchy.mover.ladder.tiers[0].medium
    assert look(runner)[0].tiers[2].failed == ""
    whole = os.dup(disk._file)
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), disk._file)  # every write fails as on a full disk
    for seed in range(6):
        runner.one(tokens(80, seed), 4)
        runner.engine.hierarchy.wait_io()
    tier = look(runner)[0].tiers[2]
    assert tier.enabled and tier.failed == "disk_full" and tier.num_failed >= 8
    os.dup2(whole, disk._file)
    os.close(whole)
    clock.advance(RETRY_S)  # until then it is left alone
    for seed in range(6, 9):
        runner.one(tokens(80, seed), 4)
        runner.engine.hierarchy.wait_io()
    tier = look(runner)[0].tiers[2]
    assert (tier.failed, tier.num_failed) == ("", 0) and tier.faults >= 8
