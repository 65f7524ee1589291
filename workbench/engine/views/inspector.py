"""One cell of the grid in full: owners, identity, bytes, and its rank in the eviction order."""

import math
from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.keys import PrivateKey, TierKey
from workbench.engine.views.cells import hbm_cells
from workbench.engine.views.request_views import owners_of
from workbench.engine.views.tier_notes import swap_record
from workbench.errors import RequestError
from workbench.spatial.hierarchy.pins import Hold
from workbench.views import BlockView

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


def inspect(engine: "Engine", tier: str, cell: int) -> BlockView:
    """Everything about a cell; RequestError if there is no such cell."""
    if tier == "G1":
        return _inspect_hbm(engine, cell)
    cells = engine.frames.tiers.cells.get(tier)
    if cells is None:
        names = ", ".join(engine.frames.tiers.cells)
        raise RequestError(f"there is no tier {tier!r}: choose G1, {names}")
    key = cells.keys[cell] if 0 <= cell < len(cells.keys) else None
    if key is None:
        return BlockView(
            tier=tier,
            cell=cell,
            state="free",
            owners=[],
            page_index=-1,
            first_token=-1,
            last_token=-1,
            ref_cnt=0,
            key="",
            parent_key="",
            label="",
            num_bytes=0,
            last_used_step=0,
            mass=None,
            evict_rank=0,
            num_evictable=0,
            why="free",
        )
    return _inspect_entry(engine, tier, cell, key)


def _inspect_entry(engine: "Engine", tier: str, cell: int, key: TierKey) -> BlockView:
    """An entry of a lower tier, with what was noted when it left G1."""
    rows = engine.hierarchy.entries(tier)
    found = next((row for row in rows if row[0] == key), None)
    evictable = [row[0] for turn in (Hold.NONE, Hold.SOFT) for row in rows if row[2] is turn]
    note = engine.frames.tiers.notes.get(key)
    private = isinstance(key, PrivateKey)
    page = -1 if note is None else note.page
    positions = _entry_positions(engine, key, page)
    first, last = (int(positions[0]), int(positions[-1])) if len(positions) else (-1, -1)
    hold = Hold.NONE if found is None else found[2]
    held_s = engine.hierarchy.holds.left_s(key)
    return BlockView(
        tier=tier,
        cell=cell,
        state="owned" if private else "cached",
        owners=[key.request_id] if isinstance(key, PrivateKey) else [],
        page_index=page,
        first_token=first,
        last_token=last,
        ref_cnt=0,
        key="" if isinstance(key, PrivateKey) else key.hex(),
        parent_key="" if note is None else note.parent_key.hex(),
        label="" if note is None else note.label,
        num_bytes=0 if found is None else found[1],
        last_used_step=engine.hierarchy.last_step(tier, key) or 0,
        mass=_private_mass(engine, key, positions),
        evict_rank=evictable.index(key) + 1 if key in evictable else 0,
        num_evictable=len(evictable),
        why=_why(hold, held_s, private),
        held_s=None if held_s is None or math.isinf(held_s) else held_s,
    )


def _why(hold: Hold, held_s: float | None, private: bool) -> str:
    if hold is Hold.HARD:
        return "held" if held_s == math.inf else "leased"
    named = {Hold.BUSY: "pinned", Hold.SOFT: "soft"}
    return named.get(hold, "private" if private else "stored")


def _entry_positions(engine: "Engine", key: TierKey, page: int) -> np.ndarray:
    """Positions of an entry's tokens in its text, int [<= block_size]; none if not known."""
    size = engine.stack.manager.block_size
    if not isinstance(key, PrivateKey):
        return np.arange(page * size, (page + 1) * size) if page >= 0 else np.zeros(0, int)
    record = swap_record(engine, key)
    if record is None:
        return np.zeros(0, int)
    stored = int(record.stored_len[key.group])
    return record.pos[key.group, key.index * size : min(stored, (key.index + 1) * size)]


def _private_mass(engine: "Engine", key: TierKey, positions: np.ndarray) -> float | None:
    """Attention that a swapped page received a query, while it was in G1."""
    if not isinstance(key, PrivateKey) or not len(positions):
        return None
    observer = engine.retainer.observers.get(key.request_id)
    if observer is None or not observer.num_observed:
        return None
    rates = observer.rate(0, int(positions[-1]) + 1)
    return float(rates[positions].sum())


def _inspect_hbm(engine: "Engine", cell: int) -> BlockView:
    pool, manager = engine.stack.pool, engine.stack.manager
    cells = hbm_cells(pool, manager.classes[0])
    if not 0 <= cell < len(cells.ids):
        raise RequestError(f"G1 has no cell {cell}: choose 0 to {len(cells.ids) - 1}")
    block = int(cells.ids[cell])
    row = pool.row_of[block]
    holders = owners_of(engine, block)
    refs = int(pool.ref_cnt[block])
    cls = pool.page_class(block)
    page_index = first = last = -1
    text = ""
    size = manager.block_size
    if holders:
        request, group, page_index = holders[0]
        blocks = manager.requests[request.request_id]
        stored = max(1, int(blocks.stored_len[group]) - page_index * size)
        start = page_index * size
        positions = blocks.pos[group, start : start + min(size, stored)]
        first, last = int(positions[0]), int(positions[-1])
        pieces = engine.streams[request.request_id].pieces
        text = "".join(pieces[at] for at in positions if at < len(pieces))
    elif row is not None:
        page_index = engine.frames.tiers.notes.page_of(row)
        if page_index >= 0:
            first, last = page_index * size, (page_index + 1) * size - 1
        text = engine.model.tokenizer.decode(list(row.token_ids))
    order = pool.eviction_order(cls) if cls >= 0 else []
    rank = order.index(block) + 1 if block in order else 0
    if refs:
        why = "pinned" if pool.pins[block] else "shared" if refs > 1 else "owned"
    else:
        why = "cached" if row is not None else "free"
    spec = pool.classes[max(cls, 0)]
    return BlockView(
        tier="G1",
        cell=cell,
        state="owned" if refs else why,
        owners=list(dict.fromkeys(request.request_id for request, _, _ in holders)),
        page_index=page_index,
        first_token=first,
        last_token=last,
        ref_cnt=refs,
        key=row.key.hex() if row else "",
        parent_key=(row.parent_key or b"").hex() if row else "",
        label=row.lineage if row else spec.label,
        num_bytes=spec.page_bytes,
        last_used_step=int(pool.last_used[block]),
        mass=float(pool.mass[block]) * size if refs else None,
        evict_rank=rank,
        num_evictable=len(order),
        why=why,
        text=text,
    )
