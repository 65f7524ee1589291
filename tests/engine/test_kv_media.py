"""KV events of all media: what a router knows is what the index and the tiers have, always."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache.prefix_index import Row
from workbench.engine.engine import Engine
from workbench.engine.kv_stream import medium_of
from workbench.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from workbench.lab.random_changes import start_config
from workbench.lab.random_load import RandomLoad
from workbench.model.random_launch import random_model
from workbench.spatial.hierarchy.entries import State

Known = dict[tuple[str | None, str | None], dict[bytes, tuple[Any, ...]]]
GPU, CPU, DISK = ("GPU", None), ("CPU", None), ("STORAGE", "G3")


class Router:
    """What is where after the batches so far: (medium, ownership) -> hash -> (parent, tokens)."""

    def __init__(self) -> None:
        self.known: Known = defaultdict(dict)
        self.seen: set[tuple[str | None, str | None]] = set()
        self.tokens: dict[bytes, tuple[int, ...]] = {}  # of every block that was ever described

    def __call__(self, batch: KVEventBatch) -> None:
        wire = msgspec.msgpack.encode(batch)
        for event in msgspec.msgpack.decode(wire, type=KVEventBatch).events:
            if isinstance(event, AllBlocksCleared):
                self.known.clear()
                continue
            place = (event.medium, event.ownership)
            self.seen.add(place)
            for key in event.block_hashes:
                if isinstance(event, BlockRemoved):
                    del self.known[place][key]  # KeyError: it was never stored there
                    continue
                assert isinstance(event, BlockStored)
                assert key not in self.known[place], "stored twice"
                assert event.block_size == len(event.token_ids)
                self.known[place][key] = (event.parent_block_hash, tuple(event.token_ids))
                if event.token_ids:
                    known = self.tokens.setdefault(key, tuple(event.token_ids))
                    assert known == tuple(event.token_ids), "one hash, two texts"

    def hashes(self) -> dict[tuple[str | None, str | None], set[bytes]]:
        return {place: set(blocks) for place, blocks in self.known.items() if blocks}


def truth(engine: Engine) -> dict[tuple[str | None, str | None], set[bytes]]:
    """What can be read where, from the owners themselves; private pages are nobody else's."""
    found = {GPU: {row.key for row in engine.stack.pool.index.rows()}}
    for table in engine.hierarchy.mover.tables:
        ready = {entry.key for entry in table.all_entries() if entry.state is State.READY}
        found[medium_of(table.name)] = {key for key in ready if isinstance(key, bytes)}
    return {place: keys for place, keys in found.items() if keys}


@pytest.mark.parametrize("seed", range(3))
def test_a_random_run_is_followed(seed: int, tmp_path: Path) -> None:
    router = Router()
    engine = Engine(start_config(), random_model(3), on_kv_events=router)
    load = RandomLoad(engine, seed, folder=str(tmp_path))
    for _ in range(150):
        load.turn()
        assert router.hashes() == truth(engine)
    assert {GPU, CPU, DISK} <= router.seen
    for row in engine.stack.pool.index.rows():
        assert router.known[GPU][row.key] == (row.parent_key, row.token_ids)
    engine.close()


TIERS: dict[str, Any] = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": pages(32)}


def test_what_goes_down_keeps_its_text(tmp_path: Path) -> None:
    """A row that leaves HBM is told on its tier with the parent and tokens it had."""
    router = Router()
    runner = Runner(build(TIERS | {"tiers.disk_mib": 1.0, "tiers.disk_path": str(tmp_path)},
                          on_kv_events=router))  # fmt: skip
    rows: dict[bytes, Row] = {}
    for seed in range(10):
        runner.one(tokens(60, seed), 4)
        rows |= {row.key: row for row in runner.engine.stack.pool.index.rows()}
    runner.engine.hierarchy.wait_io()
    runner.step()
    assert router.hashes() == truth(runner.engine)
    for place in (CPU, DISK):
        assert router.known[place]
        for key, told in router.known[place].items():
            assert told == (rows[key].parent_key, rows[key].token_ids)
    runner.engine.close()


def test_what_an_earlier_engine_kept_is_told_without_its_text(tmp_path: Path) -> None:
    changes = TIERS | {"tiers.dram_mib": 0.0, "tiers.disk_mib": 1.0,
                       "tiers.disk_path": str(tmp_path), "tiers.disk_keep": True}  # fmt: skip
    first = Runner(build(changes))
    for seed in range(6):
        first.one(tokens(60, seed), 4)
    first.engine.hierarchy.wait_io()
    first.step()
    first.engine.close()
    router = Router()
    engine = build(changes, on_kv_events=router)
    assert len(router.known[DISK]) > 5, "told before any request came"
    assert set(router.known[DISK].values()) == {(None, ())}
    assert router.hashes() == truth(engine)
    runner = Runner(engine)
    runner.one(tokens(60), 4)
    assert router.hashes() == truth(engine)
    engine.close()


def test_a_tier_that_is_switched_off_has_nothing(tmp_path: Path) -> None:
    router = Router()
    runner = Runner(build(TIERS, on_kv_events=router))
    for seed in range(6):
        runner.one(tokens(60, seed), 4)
    assert router.known[CPU]
    runner.engine.apply({"tiers.dram_mib": 0.0})
    assert not router.known[CPU] and router.hashes() == truth(runner.engine)
    runner.engine.apply({"cache.block_size": 8})
    assert router.hashes() == truth(runner.engine) == {}
    runner.engine.close()


def test_a_new_layout_clears_hbm_alone() -> None:
    router = Router()
    runner = Runner(build(TIERS, on_kv_events=router))
    for seed in range(6):
        runner.one(tokens(60, seed), 4)
    below = set(router.known[CPU])
    assert below and router.known[GPU]
    runner.engine.apply({"cache.grouping": "layer"})
    assert not router.known[GPU] and set(router.known[CPU]) == below
    assert router.hashes() == truth(runner.engine)
    runner.engine.close()


def test_nothing_is_gathered_while_nobody_listens() -> None:
    runner = Runner(build(TIERS))
    for seed in range(6):
        runner.one(tokens(60, seed), 4)
    assert runner.engine.log.kv._events == []
    runner.engine.close()
