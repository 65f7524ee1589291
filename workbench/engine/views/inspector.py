"""One cell of the grid in full: owners, identity, bytes, and its rank in the eviction order."""

from typing import TYPE_CHECKING

from workbench.cache.keys import PrivateKey
from workbench.engine.views.cells import hbm_cells
from workbench.engine.views.request_views import owners_of
from workbench.errors import RequestError
from workbench.snapshot import BlockView

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


def inspect(engine: "Engine", tier: str, cell: int) -> BlockView:
    """Everything about a cell; RequestError if there is no such cell."""
    if tier == "G1":
        return _inspect_hbm(engine, cell)
    cells = engine.frames.tier_cells.get(tier)
    if cells is None:
        raise RequestError(f"there is no tier {tier!r}: choose G1, G2 or G3")
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


def _inspect_entry(engine: "Engine", tier: str, cell: int, key: "bytes | PrivateKey") -> BlockView:
    rows = engine.hierarchy.entries(tier)
    rank = next((at for at, row in enumerate(rows) if row[0] == key), None)
    private = isinstance(key, PrivateKey)
    return BlockView(
        tier=tier,
        cell=cell,
        state="owned" if private else "cached",
        owners=[key.request_id] if isinstance(key, PrivateKey) else [],
        page_index=key.index if isinstance(key, PrivateKey) else -1,
        first_token=-1,
        last_token=-1,
        ref_cnt=0,
        key="" if isinstance(key, PrivateKey) else key.hex(),
        parent_key="",
        label=engine.stack.manager.keys.format_label,
        num_bytes=rows[rank][1] if rank is not None else 0,
        last_used_step=0,
        mass=None,
        evict_rank=0 if rank is None else rank + 1,
        num_evictable=len(rows),
        why="private" if private else "stored",
    )


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
