"""What the ledger claims beside what the operating system counts: the two can disagree."""

import gc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import MIB, Runner, build, tokens
from workbench.engine.engine import Engine
from workbench.engine.views.ledger import ledger, slab_waste_bytes
from workbench.engine.views.resident import SMALL_BYTES, Resident
from workbench.spatial.hierarchy.host_memory import HostMemory

LARGE = {"cache.block_size": 64, "cache.hbm_budget_mib": 64.0}  # few pages to keep books of


def claims(engine: Engine) -> tuple[int, int, int]:
    """(claimed, reserved, rss) in bytes."""
    lines, rss = ledger(engine)
    claimed = sum(line.num_bytes for line in lines if line.place == "process")
    return claimed, sum(line.num_bytes for line in lines if line.place == "reserved"), rss


def test_a_budget_that_nobody_used_is_reserved_and_not_claimed() -> None:
    gc.collect()
    engine = build(LARGE | {"cache.hbm_budget_mib": 4096.0}, 24)
    claimed, reserved, rss = claims(engine)
    assert rss < 4096 * MIB, "else this machine writes what it reserves, and nothing is shown"
    assert 0 < claimed <= rss
    assert 4000 * MIB < reserved <= 4096 * MIB


def test_claims_grow_by_what_the_process_grows_by_and_by_nothing_else() -> None:
    Runner(build(LARGE, 24)).one(tokens(20), 2)
    gc.collect()
    engine = build(LARGE | {"cache.hbm_budget_mib": 256.0}, 24)
    arena = engine.stack.store.arena
    before = claims(engine)
    arena[: 128 * MIB].fill_(1)
    after = claims(engine)
    grown = after[2] - before[2]
    assert grown > 120 * MIB
    assert after[0] - before[0] == pytest.approx(grown, rel=0.05)
    assert after[0] + after[1] == before[0] + before[1] == pytest.approx(sum(after[:2]))
    keep = torch.ones(64 * MIB, dtype=torch.uint8)  # not the engine's: the two figures part
    claimed, _, rss = claims(engine)
    assert claimed == after[0] and rss - after[2] > 60 * MIB
    del keep


def test_what_the_dram_tier_holds_is_resident() -> None:
    room = {"model.max_model_len": 4096, "scheduling.chunk_tokens": 512,
            "scheduling.token_budget": 512}  # fmt: skip
    runner = Runner(build(LARGE | room | {"cache.hbm_budget_mib": 8.0, "tiers.dram_mib": 48.0}, 24))
    runner.one(tokens(600), 2)
    gc.collect()
    before = claims(runner.engine)
    for seed in range(1, 20):
        runner.one(tokens(600, seed), 2)
    gc.collect()
    after = claims(runner.engine)
    lines = {line.name: line.num_bytes for line in ledger(runner.engine)[0]}
    assert lines["dram_tier"] > 40 * MIB
    grown = after[2] - before[2]
    assert 0.75 * grown < after[0] - before[0] <= grown + MIB, "books of blocks are not claimed"


def test_written_pages_are_claimed_by_what_they_are_for() -> None:
    changes = {"cache.k_format": "int8", "cache.v_format": "int8", "cache.hbm_budget_mib": 64.0}
    runner = Runner(build(changes | {"cache.block_size": 64}, 24))
    stack = runner.engine.stack
    stack.store.arena.fill_(1)
    runner.one(tokens(200), 4)
    sizes: dict[str, int] = {}
    for line in ledger(runner.engine)[0]:
        sizes[line.name] = sizes.get(line.name, 0) + line.num_bytes
    (spec,) = stack.pool.classes
    pages = int((stack.pool.slab_class == 0).sum()) * stack.pool.pages_per_slab(0)
    near = 4096 * (2 * stack.pool.num_slabs + 2)  # each border lies inside a page of memory
    assert sizes["metadata"] == pytest.approx(pages * spec.metadata_bytes, abs=near)
    assert sizes[f"kv:{spec.label}"] + sizes["metadata"] == pytest.approx(
        pages * spec.page_bytes, abs=near
    )
    assert sizes["slab_waste"] == pytest.approx(slab_waste_bytes(stack.pool), abs=near)
    assert sizes.get("reserved:arena", 0) < near


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1023), st.integers(1, 64)), max_size=12))
def test_resident_bytes_are_those_of_the_written_pages(spans: list[tuple[int, int]]) -> None:
    page = 4096
    memory = torch.from_numpy(np.empty(1024 * page + page, np.uint8))
    address = memory.data_ptr()
    first = -address % page  # pages of the system, inside the buffer
    touched = np.zeros(1025, bool)
    start = Resident(memory).total
    for at, count in spans:
        memory[first + at * page : first + min(at + count, 1023) * page] = 1
        touched[at : min(at + count, 1023)] = True
    found = Resident(memory)
    assert found.num_bytes >= SMALL_BYTES
    written = int(touched.sum()) * page
    assert max(start, written) <= found.total <= found.num_bytes
    halves = np.array([0, 400 * page + 7, found.num_bytes])
    parts = [found.between(halves[i : i + 1], halves[i + 1 : i + 2]) for i in range(2)]
    assert abs(sum(parts) - found.total) <= page


def test_small_buffers_count_whole() -> None:
    assert Resident(torch.empty(1000, dtype=torch.uint8)).total == 1000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([4096, 65536, 1 << 20])), max_size=40))
def test_kept_buffers_that_nobody_had_are_known(steps: list[tuple[bool, int]]) -> None:
    memory, out, had = HostMemory(1 << 23), [], {}  # kept alive, so that no id comes again
    for take, size in steps:
        if take and memory.live_bytes + size <= memory.limit_bytes:
            out.append(memory.take(size))
            had[id(out[-1])] = out[-1]
        elif out:
            memory.give(out.pop())
        spare = [buffer for kept in memory._spare.values() for buffer in kept]
        fresh = sum(buffer.nbytes for buffer in spare if id(buffer) not in had)
        assert memory.unwritten_bytes == fresh
