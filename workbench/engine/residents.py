"""What is in HBM, by group: blocks in tables, cached blocks in none, and what each holds."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.prefix_index import Row

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


@dataclass
class Resident:
    """Live blocks of each group, cached rows with no live block oldest first."""

    live: list[list[int]]
    idle_rows: list[Row]
    num_live_rows: int

    @property
    def most(self) -> int:
        """Pages of the fullest group."""
        return max(len(blocks) for blocks in self.live)


def count_resident(engine: "Engine") -> tuple[int, int]:
    """(blocks in tables, cached blocks in no table)."""
    pool = engine.stack.pool
    idle = int(np.count_nonzero(pool.cached & (pool.ref_cnt == 0)))
    return int(np.count_nonzero(pool.ref_cnt > 0)), idle


def residents_of(engine: "Engine", without: Collection[str] = ()) -> Resident:
    """Blocks in tables and cached rows, as if the requests `without` were preempted already."""
    pool, manager = engine.stack.pool, engine.stack.manager
    tables = [blocks for name, blocks in manager.requests.items() if name not in without]
    live: list[dict[int, None]] = [{} for _ in manager.classes]
    for group, seen in enumerate(live):
        for blocks in tables:
            seen.update(dict.fromkeys(int(block) for block in blocks.blocks(group)))
    held = set().union(*live)
    rows = [row for row in pool.index.rows() if not held.isdisjoint(row.blocks)]
    for row in rows:  # a row is kept whole while one of its blocks is in a table
        for group, seen in enumerate(live):
            seen[row.blocks[group]] = None
    idle: dict[Row, None] = {}
    for cls in dict.fromkeys(manager.classes + manager.roles.exact):
        for block in pool.eviction_order(cls):
            found = pool.row_of[block]
            if found is not None and held.isdisjoint(found.blocks):
                idle.setdefault(found)
    return Resident([list(seen) for seen in live], list(idle), len(rows))


def sink_blocks(engine: "Engine", group: int, num_sinks: int) -> set[int]:
    """Blocks of a group that hold one of the first `num_sinks` pages of a text."""
    if not num_sinks:
        return set()
    stack, size = engine.stack, engine.config.cache.block_size
    found = {row.blocks[group] for row in stack.pool.index.rows() if row.page < num_sinks}
    for tables in stack.manager.requests.values():
        held = tables.blocks(group)[:num_sinks]
        first = tables.pos[group, : len(held) * size : size]
        found.update(int(block) for block in held[first < num_sinks * size])
    return found


def written_slots(engine: "Engine", group: int, blocks: list[int]) -> np.ndarray:
    """How many slots of each block of a group are written, int64 [len(blocks)]."""
    size = engine.config.cache.block_size
    slots = dict.fromkeys(blocks, size)
    for tables in engine.stack.manager.requests.values():
        stored = int(tables.stored_len[group])
        for page, block in enumerate(tables.blocks(group)):
            slots[int(block)] = min(size, max(0, stored - page * size))
    return np.array([slots[block] for block in blocks], np.int64)
