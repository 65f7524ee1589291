"""Tables of the pages that rows chose, and the mass of those pages by stored slot.

The choice stays on its device. Every chosen page but the newest is full: where all are of one class
the host so knows how many slots a row reads; how many of each of several classes it need not know.
"""

import numpy as np
import torch
from torch import Tensor

from workbench.cache.block_state import kind_parts
from workbench.cache.step_tables import ClassTables
from workbench.engine.sparse_rows import SetRows


def tables_of(rows: SetRows, picked: Tensor, size: int) -> list[ClassTables]:
    """Tables of chosen pages of `size` slots, int64 [G, N, K] ascending, -1 behind them."""
    page, there = picked.clamp(min=0), picked >= 0
    nothing = np.zeros(picked.shape[1], np.int32)
    if len(rows.kinds) == 1:
        cls, basis = kind_parts(rows.kinds[0])
        lens = rows.seen - (rows.pages - rows.counts) * size
        offsets = rows.offsets.gather(-1, page).masked_fill_(~there, -1)
        weights, places = (_paged(x, size, page) for x in (rows.weights, rows.places))
        return [ClassTables(cls, offsets, lens.astype(np.int32), nothing, weights, places,
                            basis=basis)]  # fmt: skip
    slots = (rows.num_seen[..., None] - page * size).clamp_(0, size) * there
    kind_of = rows.kind_of.gather(-1, page)
    found = []
    for number, kind in enumerate(rows.kinds):
        mine, (cls, basis) = (kind_of == number) & there, kind_parts(kind)
        order = torch.argsort((~mine).to(torch.uint8), stable=True)  # its pages close up
        chosen = page.gather(-1, order)
        offsets = rows.offsets.gather(-1, chosen).masked_fill_(~mine.gather(-1, order), -1)
        counts = (slots * mine).sum(-1).to(torch.int32)
        places = _paged(rows.places, size, chosen)
        found.append(ClassTables(cls, offsets, counts, nothing, None, places, None, order, basis))
    return found


def mass_by_slot(
    rows: SetRows, picked: Tensor, mass: Tensor, of_row: np.ndarray, num_requests: int
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


def _paged(by_slot: Tensor | None, size: int, page: Tensor) -> Tensor | None:
    """Of what lies by slot [G, N, P * S] that of some pages, [G, N, K * S]."""
    if by_slot is None:
        return None
    paged = by_slot.unflatten(-1, (-1, size))
    return paged.gather(2, page[..., None].expand(-1, -1, -1, size)).flatten(2)
