"""Recode: every resident page is re-encoded into another format; no request is lost.

New blocks, new rows tagged `new<old`, tables swapped: no page is changed in place and no key moves.
Copies go through scratch that the ledger counts. If the new format is larger, cached rows go first
(least recently used), then running requests are preempted, last in order first.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.cache.block_pool import BlockPool
from workbench.cache.keys import tagged_key
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.prefix_index import Row
from workbench.config import EngineConfig
from workbench.engine.cache_stack import format_label, group_specs, smallest_page_bytes

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


@dataclass
class RecodeResult:
    """What a recode did."""

    num_recoded_blocks: int = 0
    num_evicted_blocks: int = 0
    num_preempted_requests: int = 0


@dataclass
class _Resident:
    """What is in HBM before: live blocks of each group, rows oldest first."""

    live: list[list[int]]
    idle_rows: list[Row]


def count_resident(engine: "Engine") -> tuple[int, int]:
    """(blocks in tables, cached blocks in no table)."""
    pool = engine.stack.pool
    idle = int(np.count_nonzero(pool.cached & (pool.ref_cnt == 0)))
    return int(np.count_nonzero(pool.ref_cnt > 0)), idle


def pages_that_fit(specs: list[PageSpec], pool: BlockPool) -> int:
    """Pages a group that the whole arena holds in these formats."""
    slabs = 0.0
    for spec in specs:
        slabs += 1 / (pool.slab_bytes // spec.page_bytes)
    return int(pool.num_slabs / slabs)


def recode(engine: "Engine", config: EngineConfig) -> RecodeResult:
    """Re-encode everything resident for `config`'s formats."""
    result = RecodeResult()
    stack = engine.stack
    specs = group_specs(stack.geometry, config)
    _make_room(engine, specs, result)
    engine.scheduler.drop_fetches()  # what requests have below HBM is in the old format
    resident = _residents(engine)
    copies = [_Copies(engine, group, resident, specs[group]) for group in range(len(specs))]
    _install(engine, config, specs, resident, copies)
    result.num_recoded_blocks = sum(len(copy.blocks) for copy in copies)
    return result


def _make_room(engine: "Engine", specs: list[PageSpec], result: RecodeResult) -> None:
    """Evict cached rows, then preempt, until the rest fits in the new format."""
    pool = engine.stack.pool
    limit = pages_that_fit(specs, pool)
    while True:
        resident = _residents(engine)
        most = max(len(live) for live in resident.live)
        if most <= limit:
            break
        order = engine.scheduler.order
        victim = max(engine.scheduler.running, key=lambda request: order.key(request, 0))
        engine.scheduler.preempt(victim, reason="larger_format")
        result.num_preempted_requests += 1
    surplus = most + len(resident.idle_rows) - limit
    for row in resident.idle_rows[: max(0, surplus)]:
        pool.drop(row)
        result.num_evicted_blocks += len(row.blocks)


def _residents(engine: "Engine") -> _Resident:
    stack = engine.stack
    pool, manager = stack.pool, stack.manager
    live: list[list[int]] = []
    for group in range(len(stack.specs)):
        seen: dict[int, None] = {}
        for blocks in manager.requests.values():
            seen.update(dict.fromkeys(int(block) for block in blocks.blocks(group)))
        for row in pool.index.rows():  # a row is kept whole while one of its blocks is in a table
            if any(pool.ref_cnt[block] for block in row.blocks):
                seen[row.blocks[group]] = None
        live.append(list(seen))
    order: dict[int, Row] = {}
    for cls in dict.fromkeys(manager.classes):
        for block in pool.eviction_order(cls):
            found = pool.row_of[block]
            if found is not None and not any(pool.ref_cnt[member] for member in found.blocks):
                order.setdefault(id(found), found)
    return _Resident(live, list(order.values()))


class _Copies:
    """The bytes of one group's blocks, taken out before the arena is laid out anew."""

    def __init__(self, engine: "Engine", group: int, resident: _Resident, spec: PageSpec) -> None:
        stack = engine.stack
        self.old_spec = stack.specs[group]
        self.new_spec = spec
        self.blocks = resident.live[group] + [row.blocks[group] for row in resident.idle_rows]
        self.pages: Tensor = stack.store.gather(stack.pool.offset[self.blocks], self.old_spec)
        self.num_slots = _written_slots(engine, group, self.blocks)
        self.last_used = stack.pool.last_used[self.blocks]
        self.owner = stack.pool.owner[self.blocks]
        self.mass = stack.pool.mass[self.blocks]


def _written_slots(engine: "Engine", group: int, blocks: list[int]) -> np.ndarray:
    size = engine.config.cache.block_size
    slots = dict.fromkeys(blocks, size)
    for tables in engine.stack.manager.requests.values():
        stored = int(tables.stored_len[group])
        for page, block in enumerate(tables.blocks(group)):
            slots[int(block)] = min(size, max(0, stored - page * size))
    return np.array([slots[block] for block in blocks], np.int64)


def _install(
    engine: "Engine",
    config: EngineConfig,
    specs: list[PageSpec],
    resident: _Resident,
    copies: list[_Copies],
) -> None:
    """A fresh pool over the same arena; tables and rows point into it."""
    stack = engine.stack
    old, manager = stack.pool, stack.manager
    rows = old.index.rows()
    old.index.clear()
    engine.log.on_cleared()
    pool = BlockPool(
        num_slabs=old.num_slabs,
        slab_bytes=old.slab_bytes,
        index=old.index,
        smallest_page_bytes=smallest_page_bytes(stack.geometry, config),
        before_evict=engine.before_evict,
    )
    pool.step, pool.num_evicted_rows = old.step, old.num_evicted_rows
    classes = [pool.class_of(spec) for spec in specs]
    places = _allocate(pool, classes, copies)
    for group, copy in enumerate(copies):
        new = [places[group][block] for block in copy.blocks]
        stack.store.recode(
            group, copy.pages, copy.old_spec, copy.new_spec, pool.offset[new], copy.num_slots
        )
        pool.last_used[new], pool.owner[new], pool.mass[new] = (
            copy.last_used,
            copy.owner,
            copy.mass,
        )
    label = format_label(config)
    manager.forget_lineages()
    _publish(engine, pool, rows, places, label)
    _settle_references(manager, pool, places, resident.idle_rows)
    for blocks in manager.requests.values():
        for group, place in enumerate(places):
            count = int(blocks.num_pages[group])
            blocks.table[group, :count] = [place[int(b)] for b in blocks.table[group, :count]]
        blocks.lineage = f"{label}<{blocks.lineage}"
        manager.remember_lineage(blocks.lineage)
    stack.pool = manager.pool = pool
    stack.specs, manager.classes, manager.format_label = specs, classes, label


def _allocate(pool: BlockPool, classes: list[int], copies: list[_Copies]) -> list[dict[int, int]]:
    """New block of each old one, in each group; contiguous runs stay runs."""
    places = []
    for cls, copy in zip(classes, copies, strict=True):
        run = pool.allocate_run(cls, len(copy.blocks)) if copy.blocks else []
        new = run if run is not None else pool.allocate(cls, len(copy.blocks))
        places.append(dict(zip(copy.blocks, new, strict=True)))
    return places


def _publish(
    engine: "Engine", pool: BlockPool, rows: list[Row], places: list[dict[int, int]], label: str
) -> None:
    parents = {row.key: row for row in rows}
    for row in rows:
        lineage = f"{label}<{row.lineage}"
        parent = parents.get(row.parent_key) if row.parent_key else None
        pool.publish(
            Row(
                key=tagged_key(row.chain_key, lineage),
                parent_key=tagged_key(parent.chain_key, lineage) if parent else None,
                blocks=tuple(places[group][block] for group, block in enumerate(row.blocks)),
                token_ids=row.token_ids,
                lineage=lineage,
                chain_key=row.chain_key,
            )
        )
        engine.stack.manager.remember_lineage(lineage)


def _settle_references(
    manager: KVCacheManager, pool: BlockPool, places: list[dict[int, int]], idle_rows: list[Row]
) -> None:
    """One reference for each table; blocks in no table become idle, oldest first as before."""
    for group, place in enumerate(places):
        counts = dict.fromkeys(place, 0)
        for blocks in manager.requests.values():
            for block in blocks.blocks(group):
                counts[int(block)] += 1
        idle = [row.blocks[group] for row in idle_rows]
        alone = [old for old, count in counts.items() if count == 0]
        for old, count in counts.items():
            for _ in range(count - 1):
                pool.touch(place[old])
        pool.free(place[old] for old in idle + [old for old in alone if old not in set(idle)])
