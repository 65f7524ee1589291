"""I10: bytes counted = bytes allocated, in every tier and format, summed independently."""

import gc

import numpy as np
import pytest
import torch

from tests.engine.harness import MIB, Runner, build, tokens
from workbench.engine.views.ledger import ledger
from workbench.settings.formats import KV_FORMATS


@pytest.mark.parametrize("grouping", ["model", "halves"])
@pytest.mark.parametrize("name", KV_FORMATS)
def test_arena_is_the_budget_and_pages_are_in_it(name: str, grouping: str) -> None:
    changes = {"cache.k_format": name, "cache.v_format": name, "cache.grouping": grouping}
    runner = Runner(build(changes, 3))
    stack = runner.engine.stack
    storage = stack.store.arena.untyped_storage().nbytes()
    assert storage == stack.store.num_bytes <= 0.25 * MIB
    assert storage > 0.9 * 0.25 * MIB
    runner.add(tokens(60), 10)
    runner.step(5)
    blocks = runner.engine.stack.manager.requests["1"]
    for group, cls in enumerate(stack.manager.classes):
        spec = stack.pool.classes[cls]
        offsets = stack.pool.offset[blocks.blocks(group)]
        assert len(set(offsets)) == len(offsets)
        assert (offsets >= 0).all() and (offsets + spec.page_bytes <= storage).all()
        ends = np.sort(offsets)
        assert (np.diff(ends) >= spec.page_bytes).all()
    runner.drain()


def test_ledger_lines_add_up_to_the_storages() -> None:
    runner = Runner(build({"tiers.dram_mib": 0.25, "cache.k_format": "int8",
                           "cache.v_format": "int4"}))  # fmt: skip
    request_id = runner.add(tokens(40), 20)
    runner.step(4)
    runner.engine.start_shadow(request_id)
    runner.step(2)
    lines, _ = ledger(runner.engine)
    total = {name: sum(line.num_bytes for line in lines if line.name == name)
             for name in {line.name for line in lines}}  # fmt: skip
    stack = runner.engine.stack
    kv = sum(count for name, count in total.items() if name.startswith("kv:"))
    parts = kv + total["metadata"] + total["unassigned_slabs"] + total["slab_waste"]
    assert parts == stack.store.arena.untyped_storage().nbytes()
    assert total["shadow"] == runner.engine.shadow.num_bytes
    assert total["scratch"] == stack.store.scratch.bytes
    dram = total["dram_tier"] + total.get("reserved:dram_tier", 0)
    assert dram == runner.engine.hierarchy.stats().host_allocated_bytes
    assert total["weights"] == runner.engine.model.decoder.weight_bytes
    runner.drain()


def test_rebuild_frees_the_old_arena() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": 8.0}))
    runner.one(tokens(20), 2)
    for size in (4.0, 8.0, 4.0):
        runner.engine.apply({"cache.hbm_budget_mib": size})
    gc.collect()
    arenas = [
        each for each in gc.get_objects()
        if isinstance(each, torch.Tensor) and each.dtype == torch.uint8
        and each.untyped_storage().nbytes() > 3.5 * MIB
    ]  # fmt: skip
    assert len({each.untyped_storage().data_ptr() for each in arenas}) == 1


def test_unwritten_bytes_never_reach_attention() -> None:
    """Poison (NaN) in everything that is not stored yet changes nothing."""
    plain = Runner(build()).one(tokens(23), 12)
    for changes in ({}, {"cache.grouping": "halves"}, {"cache.allocation": "contiguous"}):
        runner = Runner(build(changes))
        runner.engine.stack.store.arena.fill_(0xFF)
        assert runner.one(tokens(23), 12) == plain
