"""V of full pages in DRAM, K in HBM: the same answers, fewer bytes above, and never wrong ones."""

from typing import Any

import numpy as np
import pytest
import torch
from kvkernels.layout import PageSpec
from kvkernels.pages import copy_plane, encode_pages

from tests.engine.harness import Runner, build, tokens
from workbench.engine.engine import Engine
from workbench.engine.views.ledger import ledger
from workbench.errors import CapacityError, RequestError, SettingError
from workbench.quality.byte_report import byte_report, prepare, touched_bytes

SIZE = 8
BELOW: dict[str, Any] = {"cache.values": "dram", "tiers.dram_mib": 1.0}


def settings(name: str = "lowrank", **more: Any) -> dict[str, Any]:
    return {"cache.k_format": name, "cache.v_format": "fp32" if name == "lowrank" else name,
            "cache.block_size": SIZE, "cache.hbm_budget_mib": 0.5} | more  # fmt: skip


def finish(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, torch.Tensor]:
    """Three requests to their end, and the logits of every step."""
    runner = Runner(build(changes))
    run, seen = runner.engine.stack.runner.run, []

    def ran(*args: Any, **more: Any) -> Any:
        result = run(*args, **more)
        seen.append(result[0])
        return result

    monkeypatch.setattr(runner.engine.stack.runner, "run", ran)
    for seed in range(3):
        runner.add(tokens(20 + 9 * seed, seed), 16)
    runner.drain()
    return runner, torch.cat(seen)


@pytest.mark.parametrize(
    "name, more",
    [
        ("lowrank", {}),
        ("lowrank", {"cache.grouping": "head", "cache.rank": 4}),
        ("kivi4", {"cache.residual_tokens": 9}),
        ("kvquant4", {"cache.grouping": "layer"}),
        ("int8", {"cache.sink_tokens": 5, "cache.residual_tokens": 8}),
        ("fp32", {"retention.policy": "h2o", "retention.budget_tokens": 32,
                  "retention.window_tokens": 8, "cache.grouping": "layer"}),
        ("int8", {"retention.policy": "expected-attention", "retention.budget_tokens": 32,
                  "retention.window_tokens": 8, "cache.grouping": "head"}),
        ("lowrank", {"retention.sparse": "quest", "retention.sparse_pages": 3,
                     "retention.sparse_share": 0.0, "retention.sparse_dense_layers": 0}),
    ],
)  # fmt: skip
def test_it_is_the_answer_of_whole_pages_bit_for_bit(
    name: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, dense = finish(settings(name, **more), monkeypatch)
    split, logits = finish(settings(name, **more) | BELOW, monkeypatch)
    assert whole.outputs == split.outputs and torch.equal(dense, logits)
    assert split.engine.hierarchy.stats().tiers[0].num_loads > 0


def test_bytes_leave_hbm_and_are_counted_in_dram() -> None:
    """K and V of fp32 weigh the same: of each full page half is left, counted apart from claims."""
    reports = {}
    for place in ("hbm", "dram"):
        runner = Runner(build(settings("fp32", **BELOW | {"cache.values": place})))
        engine = runner.engine
        prepare(engine)
        request_id = runner.add(tokens(40), 30)
        runner.until(lambda r=runner, i=request_id: len(r.outputs[i]) == 20)
        reports[place] = byte_report(engine, engine.requests[request_id]), engine, runner
    stack = reports["dram"][1].stack
    pages, rest = divmod(59, SIZE)
    both, alone = stack.specs.joined[0].page_bytes, stack.specs.full[0].page_bytes
    assert rest and both == 2 * alone
    assert reports["hbm"][0].allocated == (pages + 1) * both
    assert reports["dram"][0].allocated == pages * alone + both
    memory = reports["dram"][1].hierarchy.mover.memory
    below = sum(buffer.nbytes for buffer in memory.live.values())
    assert below == pages * alone == stack.values.num_bytes
    lines = {line.name: line.num_bytes for line in ledger(reports["dram"][1])[0]}
    assert lines["dram_tier"] >= below
    split = stack.runner.split
    assert lines["scratch"] == stack.store.scratch.bytes + split.scratch.bytes
    assert lines["staging"] == split.stage.num_bytes > 0
    assert touched_bytes(reports["dram"][1]) < touched_bytes(reports["hbm"][1])
    for _, _, runner in reports.values():
        runner.drain()


def test_twice_as_many_requests_run_at_once() -> None:
    """The room that V leaves is given to others: fewer are preempted in the same HBM."""
    preemptions = {}
    for place in ("hbm", "dram"):
        changes = {"cache.values": place, "cache.hbm_budget_mib": 0.14}
        runner = Runner(build(settings("fp32", **BELOW | changes)))
        ids = [runner.add(tokens(40, seed), 40) for seed in range(6)]
        runner.drain()
        assert all(len(runner.outputs[each]) == 40 for each in ids)
        preemptions[place] = runner.engine.metrics.num_preemptions
    assert preemptions["dram"] < preemptions["hbm"]


def test_a_prefix_is_shared_with_its_values() -> None:
    runner = Runner(build(settings(**BELOW)))
    first = runner.one(tokens(40), 4)
    loads = runner.engine.hierarchy.stats().tiers[0].num_stores
    again = runner.add(tokens(40), 4)
    runner.step()
    assert runner.engine.requests[again].num_cached_tokens == 32
    runner.drain()
    assert runner.outputs[again] == first
    assert runner.engine.hierarchy.stats().tiers[0].num_stores < loads + 4, "none twice"


def test_values_go_with_their_block() -> None:
    runner = Runner(build(settings(**BELOW)))
    engine = runner.engine
    request_id = runner.add(tokens(40), 30)
    runner.step(5)
    values = engine.stack.values
    assert values is not None and values.num_bytes > 0
    engine.abort(request_id)
    engine.stack.pool.evict_all()
    runner.step()
    values.sweep()
    assert values.num_bytes == 0 == engine.hierarchy.mover.dram.used_bytes
    other = runner.add(tokens(30, 7), 20)
    runner.step(4)
    engine.scheduler.preempt(engine.requests[other], "test")
    runner.check()
    runner.drain()
    assert len(runner.outputs[other]) == 20


def test_damaged_values_are_computed_again() -> None:
    """The step that read them counts for nothing, and nobody finds the block any more."""
    good = Runner(build(settings(**BELOW))).one(tokens(40), 20)
    runner = Runner(build(settings(**BELOW)))
    engine = runner.engine
    request_id = runner.add(tokens(40), 20)
    runner.until(lambda: len(runner.outputs[request_id]) == 5)
    for entry in engine.hierarchy.mover.dram.all_entries()[1:3]:
        assert entry.buffer is not None
        entry.buffer[7] ^= 255
    runner.step()
    assert engine.requests[request_id].num_preemptions == 1
    assert engine.hierarchy.stats().tiers[0].faults["corrupt"] >= 1
    runner.drain()
    assert runner.outputs[request_id] == good


def test_dram_that_is_full_leaves_pages_whole_in_hbm() -> None:
    """Two requests of which only one finds room for its V: both end, with the right tokens."""
    good = [Runner(build(settings("fp32"))).one(tokens(40, seed), 20) for seed in range(3)]
    room = 9 * 2 * 2 * SIZE * 16 * 4 / 2**20  # the V of nine pages
    runner = Runner(build(settings("fp32", **BELOW | {"tiers.dram_mib": room})))
    engine = runner.engine
    ids = [runner.add(tokens(40, seed), 20) for seed in range(3)]
    runner.until(lambda: all(len(runner.outputs[each]) > 2 for each in ids))
    stack = engine.stack
    kinds = {stack.pool.classes[stack.pool.page_class(int(block))].planes
             for each in ids for block in stack.manager.requests[each].blocks(0)[:4]}  # fmt: skip
    assert kinds == {"k", "kv"}
    assert engine.hierarchy.stats().tiers[0].num_dropped_stores > 0
    runner.drain()
    assert [runner.outputs[each] for each in ids] == good


def test_a_request_whose_values_never_fit_is_told_which_setting() -> None:
    room = 3 * 2 * 2 * SIZE * 16 * 4 / 2**20
    runner = Runner(build(settings("fp32", **BELOW | {"tiers.dram_mib": room})))
    with pytest.raises(RequestError, match="the whole pool has 3: .* raise tiers.dram_mib"):
        runner.add(tokens(60), 4)
    good = Runner(build(settings("fp32"))).one(tokens(20), 40)
    assert runner.one(tokens(20), 40) == good, "what grows beyond it stays whole in HBM"


def test_it_changes_live_and_no_request_is_lost() -> None:
    runner = Runner(build(settings("fp32", **{"tiers.dram_mib": 1.0})))
    engine = runner.engine
    first = runner.add(tokens(40), 60)
    runner.step(6)
    for changes in (
        {"cache.values": "dram"}, {"cache.k_format": "lowrank"}, {"cache.rank": 4},
        {"retention.sparse": "quest"}, {"cache.values": "hbm", "tiers.dram_mib": 0.0},
        {"cache.values": "dram", "tiers.dram_mib": 0.5}, {"cache.k_format": "int8"},
    ):  # fmt: skip
        report = engine.apply(changes)
        assert set(report.kinds.values()) <= {"rebuild", "hot"}
        runner.check()
        runner.step(6)
    engine.frame(1, state="running")
    runner.drain()
    assert len(runner.outputs[first]) == 60


REFUSED = [
    ({"tiers.dram_mib": 0.0}, "tiers.dram_mib = 0: give DRAM room, or choose hbm"),
    ({"tiers.dram_throttle_mb_s": 5.0}, "tiers.dram_throttle_mb_s = 5 makes loads wait: choose 0"),
    ({"retention.level": "token"}, "so retention.level cannot be token: choose page"),
    ({"cache.mode": "off"}, "so cache.mode cannot be off: choose on"),
    ({"cache.allocation": "contiguous"}, "so cache.allocation cannot be contiguous: choose paged"),
]  # fmt: skip


@pytest.mark.parametrize("changes, sentence", REFUSED)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    runner = Runner(build(settings(**BELOW)))
    with pytest.raises(SettingError) as error:
        runner.engine.apply(changes)
    assert sentence in str(error.value)
    runner.one(tokens(9), 3)
    with pytest.raises(CapacityError, match="tiers.dram_mib = 0.0001 MiB holds the V of no block"):
        build(settings("fp32", **BELOW | {"tiers.dram_mib": 0.0001}))


@pytest.mark.parametrize("name", ["fp32", "int8", "lowrank", "kivi4", "nvfp4"])
def test_planes_apart_are_the_page_again(name: str) -> None:
    both = PageSpec(2, 3, 16, SIZE, name, name)
    alone = {plane: both.part(plane) for plane in "kv"}
    from kvkernels.api import FormatState

    state, values = FormatState.from_spec(both), torch.randn(4, 2, 3, SIZE, 16)
    pages, again = (torch.zeros(4, both.page_bytes, dtype=torch.uint8) for _ in range(2))
    for plane, spec in alone.items():
        encode_pages(pages, both, plane, state, values)
        part = torch.zeros(4, spec.page_bytes, dtype=torch.uint8)
        copy_plane(pages, both, plane, part, spec)
        copy_plane(part, spec, plane, again, both)
        assert spec.page_bytes < both.page_bytes and plane.upper() in spec.label
    assert torch.equal(pages, again)
    sizes = sum(spec.page_bytes - spec.metadata_bytes for spec in alone.values())
    assert sizes == both.page_bytes - both.metadata_bytes


def test_a_cell_of_dram_says_what_it_is() -> None:
    engine: Engine = build(settings(**BELOW))
    runner = Runner(engine)
    runner.add(tokens(40), 8)
    runner.step(5)
    engine.frame(1, state="running")
    assert "values of block" in engine.inspect("G2", 0).owners[0]
    assert np.isfinite(engine.snapshot().grid[1].num_cells)
    runner.drain()
