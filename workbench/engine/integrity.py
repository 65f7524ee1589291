"""Invariants that hold between any two steps, checked on a live engine: I1-I4, I7, I10.

Here and in the tiers' own check. The others are about what happens: a failed allocation (I5), a
batch (I6), progress (I8, `watchdog`), tokens (I9, I11) and hits (I12); tests hold those.
"""

from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.keys import next_key, tagged_key
from workbench.engine.bounds_check import check_bounds
from workbench.engine.own_bases import check_bases
from workbench.engine.values_check import check_values
from workbench.errors import IntegrityError
from workbench.request import Request, RequestStatus
from workbench.views import IntegrityView

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


def check(engine: "Engine") -> IntegrityView:
    """Check everything; the view says which invariant failed, if any."""
    try:
        verify(engine)
    except IntegrityError as error:
        return IntegrityView(ok=False, step=engine.num_steps, message=str(error))
    return IntegrityView(ok=True, step=engine.num_steps)


def verify(engine: "Engine") -> None:
    """Raise IntegrityError at the first invariant that does not hold."""
    _check_partition(engine)
    _check_references(engine)
    _check_rows(engine)
    _check_requests(engine)
    _check_bytes(engine)
    check_bounds(engine)
    check_values(engine)
    check_bases(engine)
    if engine.byte_guard is not None:
        engine.byte_guard.verify(engine.stack)
    engine.hierarchy.check_integrity()


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise IntegrityError(message)


def _check_partition(engine: "Engine") -> None:
    """I1: free + cached + owned = total, disjoint, per class and in bytes over slabs."""
    pool = engine.stack.pool
    assigned = 0
    for cls, spec in enumerate(pool.classes):
        slabs = np.flatnonzero(pool.slab_class == cls)
        pages = pool.pages_per_slab(cls)
        ids = (slabs[:, None] * pool.stride + np.arange(pages)).ravel()
        linked, counted = pool.linked_blocks(cls), pool._lists.lengths[cls]
        _require(
            len(linked) == len(set(linked)) == counted,
            f"I1: free list of class {spec.label} counts {counted} blocks and "
            f"holds {len(set(linked))}",
        )
        owned = {int(block) for block in ids if pool.ref_cnt[block] > 0}
        _require(
            owned.isdisjoint(linked) and owned | set(linked) == {int(b) for b in ids},
            f"I1: blocks of class {spec.label} are not free, cached or owned exactly once",
        )
        used = (pool.ref_cnt[ids] > 0) | pool.cached[ids]
        live = (pool.ref_cnt[ids] > 0).reshape(len(slabs), pages).sum(1)
        _require(
            bool((pool._slab_used[slabs] == used.reshape(len(slabs), pages).sum(1)).all())
            and bool((pool._slab_live[slabs] == live).all()),
            f"I1: a slab of class {spec.label} miscounts its pages",
        )
        _require(
            bool((pool._slab_used[slabs] > 0).all()),
            f"I1: an empty slab of class {spec.label} was not given back",
        )
        assigned += len(slabs)
    unassigned = sorted(pool._unassigned)
    _require(
        assigned + len(unassigned) == pool.num_slabs
        and unassigned == np.flatnonzero(pool.slab_class == -1).tolist(),
        "I1: slabs are not assigned or free exactly once",
    )


def _check_references(engine: "Engine") -> None:
    """I2: reference count = number of tables and pins that contain the block."""
    pool, manager = engine.stack.pool, engine.stack.manager
    counted = pool.pins.copy()
    for blocks in manager.requests.values():
        for group in range(len(manager.classes)):
            np.add.at(counted, blocks.held(group), 1)
    wrong = np.flatnonzero(counted != pool.ref_cnt)
    _require(
        not len(wrong),
        f"I2: block {wrong[:1]} has {pool.ref_cnt[wrong[:1]]} references and "
        f"{counted[wrong[:1]]} tables and pins hold it",
    )


def _check_rows(engine: "Engine") -> None:
    """I3: hash and row are a bijection; cached blocks are full and theirs alone."""
    pool = engine.stack.pool
    marked = {int(block) for block in np.flatnonzero(pool.cached)}
    seen: set[int] = set()
    for row in pool.index.rows():
        _require(pool.index.get(row.key) is row, "I3: a key leads to another row")
        for group, block in enumerate(row.blocks):
            _require(pool.row_of[block] is row, f"I3: block {block} does not know its row")
            _require(block not in seen, f"I3: block {block} is in two rows")
            _require(
                pool.page_class(block) == engine.stack.manager.roles.final_row(row.page)[group],
                f"I3: block {block} is of another class than its group",
            )
            seen.add(block)
        _require(len(row.token_ids) == engine.config.cache.block_size, "I3: a row is not full")
    _require(seen == marked, "I3: cached blocks and the index disagree")
    fault = pool.index.fault()
    _require(not fault, f"I3: {fault}")
    holders = {block for block in range(len(pool.row_of)) if pool.row_of[block] is not None}
    _require(holders == marked, "I3: a block keeps a row that is gone")
    _check_keys(engine)


def _check_keys(engine: "Engine") -> None:
    """I3: a key is the hash of what its row holds."""
    index = engine.stack.pool.index
    for row in index.rows():
        right = row.key == tagged_key(row.chain_key, row.lineage)
        parent = index.get(row.parent_key) if row.parent_key else None
        if parent is not None:
            right = right and row.chain_key == next_key(parent.chain_key, row.token_ids)
        _require(right, f"I3: the key of block {row.blocks[0]} is not the hash of its tokens")
    for request in engine.scheduler.running:
        _check_table_keys(engine, request)


def _check_table_keys(engine: "Engine", request: Request) -> None:
    """I3: the rows in a request's table hold that request's text, so a hit is never wrong."""
    pool, manager = engine.stack.pool, engine.stack.manager
    size = engine.config.cache.block_size
    blocks, chain = manager.requests[request.request_id], manager.keys.chain(request)
    for group in range(len(manager.classes)):
        for page in range(int(blocks.stored_len[group]) // size):
            row = pool.row_of[int(blocks.table[group, page])]
            at = int(blocks.pos[group, page * size]) // size
            text = request.token_ids[at * size : (at + 1) * size]
            _require(
                row is None or (row.chain_key == chain[at] and list(row.token_ids) == text),
                f"I3: request {request.request_id} holds another text's block",
            )


def _check_requests(engine: "Engine") -> None:
    """I4, I7: counters bound each other, tables fit them, only running requests hold blocks."""
    manager, size = engine.stack.manager, engine.config.cache.block_size
    pool = engine.stack.pool
    running = {request.request_id for request in engine.scheduler.running}
    _require(set(manager.requests) == running, "I7: a request that does not run holds blocks")
    for request in engine.scheduler.running:
        _require(
            request.status is RequestStatus.RUNNING, f"I4: {request.request_id} is not running"
        )
        blocks = manager.requests[request.request_id]
        _require(
            0 <= request.num_computed_tokens <= request.num_tokens,
            f"I4: request {request.request_id} computed {request.num_computed_tokens} of "
            f"{request.num_tokens} tokens",
        )
        for group in range(len(manager.classes)):
            stored, pages = int(blocks.stored_len[group]), int(blocks.num_pages[group])
            _require(
                stored <= request.num_computed_tokens and pages >= -(-stored // size),
                f"I4: request {request.request_id} stores {stored} slots in {pages} pages",
            )
            positions = blocks.positions(group)
            _require(bool((np.diff(positions) > 0).all()), "I4: positions do not increase")
            end = int(positions[-1]) + 1 if stored else 0
            _require(
                end == request.num_computed_tokens,
                f"I4: the table of request {request.request_id} ends at token {end} of "
                f"{request.num_computed_tokens} computed",
            )
            for block in blocks.table[group, stored // size : pages]:
                _require(
                    pool.ref_cnt[block] - pool.pins[block] == 1
                    and not pool.cached[block]
                    and pool.owner[block] == request.owner,
                    f"I3: request {request.request_id} would write into block {block}, which "
                    "is not its own",
                )
    for request in engine.scheduler.waiting:
        _require(request.num_computed_tokens == 0, f"I4: {request.request_id} waits with tokens")


def _check_bytes(engine: "Engine") -> None:
    """I10: bytes counted = bytes allocated; offsets of live blocks do not overlap."""
    stack = engine.stack
    pool = stack.pool
    _require(
        stack.store.num_bytes == pool.num_slabs * pool.slab_bytes <= stack.budget_bytes,
        f"I10: the arena has {stack.store.num_bytes} bytes of a budget of {stack.budget_bytes}",
    )
    live = np.flatnonzero(pool.offset >= 0)
    order = live[np.argsort(pool.offset[live])]
    sizes = np.array([spec.page_bytes for spec in pool.classes], np.int64)
    ends = pool.offset[order] + sizes[pool.slab_class[order // pool.stride]]
    _require(
        bool((ends[:-1] <= pool.offset[order][1:]).all())
        and (not len(ends) or ends[-1] <= stack.store.num_bytes),
        "I10: two pages overlap in the arena",
    )
