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
from workbench.cache.contiguous import take_run
from workbench.cache.geometry import fitting_pages
from workbench.cache.keys import tagged_key
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.prefix_index import Row
from workbench.cache.sealing import drop_spares
from workbench.config import EngineConfig
from workbench.engine.cache_stack import format_label, smallest_page_bytes
from workbench.engine.group_specs import GroupSpecs, group_specs
from workbench.engine.residents import Resident, residents_of, sink_blocks, written_slots
from workbench.request import Request

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


@dataclass
class RecodeResult:
    """What a recode did."""

    num_recoded_blocks: int = 0
    num_evicted_blocks: int = 0
    num_preempted_requests: int = 0


def forecast(engine: "Engine", config: EngineConfig) -> RecodeResult:
    """What `recode` would do, and nothing is done."""
    limit = _limit(engine, group_specs(engine.stack.geometry, config, engine.model))
    victims: set[str] = set()
    for request in _victims(engine):
        resident = residents_of(engine, victims)
        if resident.most <= limit:
            break
        victims.add(request.request_id)
    resident = residents_of(engine, victims)
    groups = len(resident.live)
    num_idle = len(engine.stack.pool.index) - resident.num_live_rows
    evicted = max(0, resident.most + num_idle - limit)
    return RecodeResult(
        num_recoded_blocks=sum(map(len, resident.live)) + (num_idle - evicted) * groups,
        num_evicted_blocks=evicted * groups,
        num_preempted_requests=len(victims),
    )


def recode(engine: "Engine", config: EngineConfig) -> RecodeResult:
    """Re-encode everything resident for `config`'s formats."""
    result = RecodeResult()
    stack = engine.stack
    specs = group_specs(stack.geometry, config, engine.model)
    stack.store.calibration = engine.calibration
    drop_spares(stack.manager)
    _make_room(engine, specs, result)
    engine.scheduler.drop_fetches()  # what requests have below HBM is in the old format
    resident = residents_of(engine)
    copies = [
        copy
        for group in range(len(specs.full))
        for copy in _copies_of(engine, group, resident, specs)
    ]
    _install(engine, config, specs, resident, copies)
    result.num_recoded_blocks = sum(len(copy.blocks) for copy in copies)
    return result


def _make_room(engine: "Engine", specs: GroupSpecs, result: RecodeResult) -> None:
    """Preempt until what is held fits the new format, then evict cached rows until all does."""
    limit = _limit(engine, specs)
    victims = iter(_victims(engine))
    while (resident := residents_of(engine)).most > limit:
        engine.scheduler.preempt(next(victims), reason="larger_format")
        result.num_preempted_requests += 1
    surplus = resident.most + len(resident.idle_rows) - limit
    for row in resident.idle_rows[: max(0, surplus)]:
        engine.stack.pool.drop(row)
        result.num_evicted_blocks += len(row.blocks)


def _limit(engine: "Engine", specs: GroupSpecs) -> int:
    """Pages of each group that fit, beside those that running requests are filling."""
    pool, besides = engine.stack.pool, specs.sinks(len(sink_blocks(engine, 0, specs.num_sinks)))
    if specs.seals:
        for blocks in engine.stack.manager.requests.values():
            unfilled = blocks.num_pages - blocks.stored_len // blocks.block_size
            for spec, count in zip(specs.open, unfilled, strict=True):
                besides[spec] += int(count)
    return fitting_pages(specs.full, pool.slab_bytes, pool.num_slabs, besides)


def _victims(engine: "Engine") -> list[Request]:
    """Running requests, the first to be preempted first."""
    order = engine.scheduler.order
    return sorted(engine.scheduler.running, key=lambda request: order.key(request, 0), reverse=True)


class _Copies:
    """The bytes of some blocks of a group, taken out before the arena is laid out anew."""

    def __init__(
        self, engine: "Engine", group: int, blocks: list[int], slots: np.ndarray, spec: PageSpec
    ) -> None:
        stack = engine.stack
        self.group, self.blocks, self.num_slots = group, blocks, slots
        self.old_spec = stack.pool.classes[stack.pool.page_class(blocks[0])]
        self.new_spec = spec
        self.pages: Tensor = stack.store.gather(stack.pool.offset[blocks], self.old_spec)
        self.last_used = stack.pool.last_used[blocks]
        self.owner = stack.pool.owner[blocks]
        self.mass = stack.pool.mass[blocks]


def _copies_of(
    engine: "Engine", group: int, resident: Resident, specs: GroupSpecs
) -> list[_Copies]:
    """One a class that the blocks are in, and a class that they go to."""
    blocks = resident.live[group] + [row.blocks[group] for row in resident.idle_rows]
    slots = written_slots(engine, group, blocks)
    sinks = np.isin(blocks, list(sink_blocks(engine, group, specs.num_sinks)))
    full = slots == engine.config.cache.block_size
    classes = engine.stack.pool.page_classes(np.array(blocks, np.int64))
    copies = []
    for cls in dict.fromkeys(classes.tolist()):
        for mask, spec in (
            (sinks, specs.exact[group]),
            (~sinks & full, specs.full[group]),
            (~sinks & ~full, specs.open[group]),
        ):
            chosen = np.flatnonzero((classes == cls) & mask)
            if len(chosen):
                mine = [blocks[at] for at in chosen]
                copies.append(_Copies(engine, group, mine, slots[chosen], spec))
    return copies


def _install(
    engine: "Engine",
    config: EngineConfig,
    specs: GroupSpecs,
    resident: Resident,
    copies: list[_Copies],
) -> None:
    """A fresh pool over the same arena; tables and rows point into it."""
    stack = engine.stack
    old, manager = stack.pool, stack.manager
    rows = old.index.rows()
    old.index.clear()
    engine.log.on_cleared(rows)
    pool = BlockPool(
        num_slabs=old.num_slabs,
        slab_bytes=old.slab_bytes,
        index=old.index,
        smallest_page_bytes=smallest_page_bytes(stack.geometry, config),
        before_evict=engine.moves.before_evict,
    )
    pool.step, pool.num_evicted_rows = old.step, old.num_evicted_rows
    places: list[dict[int, int]] = [{} for _ in specs.full]
    for copy in copies:
        new = _allocate(pool, pool.class_of(copy.new_spec), len(copy.blocks))
        places[copy.group].update(zip(copy.blocks, new, strict=True))
        stack.store.recode(
            copy.group, copy.pages, copy.old_spec, copy.new_spec, pool.offset[new], copy.num_slots
        )
        pool.last_used[new], pool.owner[new], pool.mass[new] = (
            copy.last_used,
            copy.owner,
            copy.mass,
        )
    label = format_label(config, stack.store.calibration)
    manager.keys.begin_format(label)
    _publish(engine, pool, rows, places, label)
    _settle_references(manager, pool, places, resident.idle_rows)
    for blocks in manager.requests.values():
        for group, place in enumerate(places):
            count = int(blocks.num_pages[group])
            blocks.table[group, :count] = [place[int(b)] for b in blocks.table[group, :count]]
        blocks.lineage = f"{label}<{blocks.lineage}"
        manager.keys.remember_lineage(blocks.lineage)
    stack.pool = manager.pool = pool
    stack.specs = specs
    manager.roles.full = [pool.class_of(spec) for spec in specs.full]
    manager.roles.open = [pool.class_of(spec) for spec in specs.open]
    manager.roles.exact = specs.exact_classes(pool)


def _allocate(pool: BlockPool, cls: int, count: int) -> list[int]:
    """Fresh blocks; contiguous runs stay runs."""
    run = take_run(pool, cls, count)
    return run if run is not None else pool.allocate([(cls, count)])[0]


def _publish(
    engine: "Engine", pool: BlockPool, rows: list[Row], places: list[dict[int, int]], label: str
) -> None:
    chain_keys = {row.key: row.chain_key for row in rows}
    for row in rows:
        lineage = f"{label}<{row.lineage}"
        # Of a parent that has left HBM only its old key is known: what follows it stays apart.
        before = chain_keys.get(row.parent_key, row.parent_key) if row.parent_key else None
        pool.publish(
            Row(
                key=tagged_key(row.chain_key, lineage),
                parent_key=tagged_key(before, lineage) if before else None,
                blocks=tuple(places[group][block] for group, block in enumerate(row.blocks)),
                token_ids=row.token_ids,
                lineage=lineage,
                chain_key=row.chain_key,
                root_key=row.root_key,
                page=row.page,
            )
        )
        engine.stack.manager.keys.remember_lineage(lineage)


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
