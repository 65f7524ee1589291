"""Tables of the pages that rows chose, and the mass of those pages by stored slot.

Where all pages are of one class the choice stays on its device: every chosen page but the newest is
full, so how many slots a row reads is known without it. Pages of several classes are sorted out on
the host.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workbench.cache.step_tables import ClassTables, chosen_tables

if TYPE_CHECKING:
    from workbench.cache.kv_cache_manager import KVCacheManager
    from workbench.engine.sparse_rows import SetRows


def tables_of(
    manager: "KVCacheManager", rows: "SetRows", cls: int, picked: Tensor
) -> list[ClassTables]:
    """Tables of chosen pages, int64 [G, N, K] ascending, -1 behind them; `cls` where it is one."""
    if rows.offsets is None:
        return _by_class(manager, rows, picked.cpu().numpy())
    size, page = manager.block_size, picked.clamp(min=0)
    lens = rows.seen - (rows.pages - rows.counts) * size
    offsets = rows.offsets.gather(-1, page).masked_fill_(picked < 0, -1)
    nothing = np.zeros(picked.shape[1], np.int32)
    weights, places = (
        None if by_slot is None else _paged(by_slot, size, page)
        for by_slot in (rows.weights, rows.places)
    )
    return [ClassTables(cls, offsets, lens.astype(np.int32), nothing, weights, places)]


def num_pages(rows: "SetRows", tables: list[ClassTables]) -> list[int]:
    """How many pages each of the tables has."""
    if rows.offsets is not None:
        return [int(rows.counts.sum())]
    return [int((each.page_offsets >= 0).sum()) for each in tables]


def mass_by_slot(
    rows: "SetRows", picked: Tensor, mass: Tensor, of_row: np.ndarray, num_requests: int
) -> Tensor:
    """Mass [N, H, K * S] of chosen slots as [R, H, T] by stored slot, summed over rows."""
    groups, count, most = picked.shape
    heads, size = mass.shape[1], mass.shape[-1] // most
    slots = picked.clamp(min=0)[..., None] * size + torch.arange(size, device=picked.device)
    index = slots.flatten(2).transpose(0, 1).repeat_interleave(heads // groups, 1)  # [N, H, K * S]
    width = rows.table.shape[-1] * size
    by_row = mass.new_zeros(count, heads, width).scatter_add_(-1, index, mass)
    total = mass.new_zeros(num_requests, heads, width)
    return total.index_add_(0, torch.from_numpy(of_row).to(mass.device), by_row)


def _paged(by_slot: Tensor, size: int, page: Tensor) -> Tensor:
    """Of what lies by slot [G, N, P * S] that of some pages, [G, N, K * S]."""
    paged = by_slot.unflatten(-1, (-1, size))
    return paged.gather(2, page[..., None].expand(-1, -1, -1, size)).flatten(2)


def _by_class(manager: "KVCacheManager", rows: "SetRows", picked: np.ndarray) -> list[ClassTables]:
    size = manager.block_size
    there, page = picked >= 0, np.maximum(picked, 0)
    slots = np.where(there, np.clip(rows.seen[..., None] - page * size, 0, size), 0)
    pos = None
    if rows.pos is not None:
        paged = rows.pos.reshape(*rows.pos.shape[:2], -1, size)
        pos = np.take_along_axis(paged, page[..., None], 2).reshape(*page.shape[:2], -1)
    return chosen_tables(manager, np.take_along_axis(rows.table, page, 2), slots, pos)
