"""Query rows that read sparsely, with the tables and bounds of one layer set."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from kvkernels.api import RopeTable
from torch import Tensor

from workbench.cache.geometry import LayerSet
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_bounds import PageBounds
from workbench.request import Request

Fresh = tuple[int, np.ndarray, np.ndarray | None]  # group, blocks, positions of their slots


@dataclass(frozen=True)
class SetRows:
    """Rows of one layer set: G groups, N rows, P pages at most, S slots a page.

    table int64 [G, N, P] block ids; seen, pages, counts int64 [G, N]: slots and pages that a row
    sees, and pages that it reads. bound_rows int64 [G, N, P]: where bounds lie, -1 from the newest
    page on. filled: pages that become full in this step. pos, log_count [G, N, P * S] or None, as
    in `ClassTables`. offsets int64 [G, N, P]: where pages lie in the arena. kinds: the kinds of
    page that rows see; kind_of uint8 [G, N, P]: which of them a page is. Tensors are on the device
    of the bounds, once for all layers of a set.
    """

    table: np.ndarray
    seen: np.ndarray
    pages: np.ndarray
    counts: np.ndarray
    bound_rows: Tensor
    filled: list[Fresh]
    pos: np.ndarray | None
    log_count: np.ndarray | None
    offsets: Tensor
    kinds: tuple[int, ...]
    kind_of: Tensor

    @cached_property
    def most(self) -> int:
        """The most pages that any row reads."""
        return int(self.counts.max())

    @cached_property
    def num_seen(self) -> Tensor:
        """`seen` on the device."""
        return self._there(self.seen)

    @cached_property
    def last(self) -> Tensor:
        """The newest page of each row, int64 [G, N]."""
        return self._there(self.pages - 1)

    @cached_property
    def num_read(self) -> Tensor:
        """`counts` on the device."""
        return self._there(self.counts)

    @cached_property
    def places(self) -> Tensor | None:
        """`pos` on the device."""
        return None if self.pos is None else self._there(self.pos)

    @cached_property
    def weights(self) -> Tensor | None:
        """`log_count` on the device."""
        return None if self.log_count is None else self._there(self.log_count)

    def _there(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.bound_rows.device)


def make_rows(
    manager: KVCacheManager,
    bounds: PageBounds,
    layer_set: LayerSet,
    requests: list[Request],
    of_row: np.ndarray,
    step_of_row: np.ndarray,
    *,
    first_layer: int,
    wanted: Callable[[np.ndarray], np.ndarray],
    rope_table: RopeTable | None,
) -> SetRows:
    """The rows of some requests, with valid bounds of all pages that were full before the step.

    of_row int64 [N]: whose row it is; step_of_row: which of that request's new tokens. Tokens of a
    prompt read every page; the others `wanted(pages)`.
    """
    groups, size = list(layer_set.groups), manager.block_size
    blocks = [manager.requests[request.request_id] for request in requests]
    stored = np.stack([each.stored_len[groups] for each in blocks], 1).astype(np.int64)  # [G, R]
    seen = stored[:, of_row] + step_of_row + 1
    pages = -(-seen // size)
    width = int(pages.max())
    tables = np.stack([each.table[groups, :width] for each in blocks], 1).astype(np.int64)
    first = np.array([request.num_computed_tokens for request in requests])
    prompt = np.array([request.num_prompt_tokens for request in requests])
    of_prompt = first[of_row] + step_of_row < prompt[of_row]
    table = tables[:, of_row]
    rows = bounds.rows(table)
    rows[np.arange(width) >= pages[..., None] - 1] = -1
    pos = None
    if rope_table is not None:
        pos = np.stack([each.pos[groups, : width * size] for each in blocks], 1)
    counts = None
    if any(each.log_count is not None for each in blocks):
        counts = np.zeros((len(groups), len(blocks), width * size), np.float32)
        for at, each in enumerate(blocks):
            if each.log_count is not None:
                counts[:, at] = each.log_count[groups, : width * size]
    new = np.bincount(of_row, minlength=len(requests))
    filled = _refresh(bounds, layer_set, tables, stored, new, pos, size, first_layer, rope_table)
    return SetRows(
        table,
        seen,
        pages,
        np.where(of_prompt, pages, wanted(pages)),
        _to(bounds, rows),
        filled,
        None if pos is None else pos[:, of_row],
        None if counts is None else counts[:, of_row],
        _to(bounds, manager.pool.offset[table]),
        *_kinds(manager, bounds, table, pages),
    )


def _kinds(
    manager: KVCacheManager, bounds: PageBounds, table: np.ndarray, pages: np.ndarray
) -> tuple[tuple[int, ...], Tensor]:
    """Kinds of the pages that rows see, as they are read, and which of them each page is."""
    classes, bases = manager.pool.page_classes(table), manager.pool.basis[table].astype(np.int64)
    for alone, both in manager.roles.joined.items():
        classes = np.where(classes == alone, both, classes)
    kinds = classes + (bases << 16)
    seen = np.arange(table.shape[-1]) < pages[..., None]
    known = np.unique(kinds[seen])
    return tuple(known.tolist()), _to(bounds, np.searchsorted(known, kinds).astype(np.uint8))


def _to(bounds: PageBounds, values: np.ndarray) -> Tensor:
    return torch.from_numpy(values).to(bounds.tensor.device)


def _refresh(
    bounds: PageBounds,
    layer_set: LayerSet,
    tables: np.ndarray,
    stored: np.ndarray,
    new: np.ndarray,
    pos: np.ndarray | None,
    size: int,
    first_layer: int,
    rope_table: RopeTable | None,
) -> list[Fresh]:
    """Make the bounds that are stale; returns the pages that this step fills.

    Those are made layer by layer behind the write, and count as stale until the next step.
    """
    page = np.arange(tables.shape[-1])
    layers = range(sum(layer < first_layer for layer in layer_set.layers), len(layer_set.layers))
    filled = []
    for at, group in enumerate(layer_set.groups):
        full, ends = stored[at] // size, (stored[at] + new) // size

        def chosen(mask: np.ndarray, at: int = at) -> tuple[np.ndarray, np.ndarray | None]:
            """Blocks of a mask [R, P], each once, and their slots' positions."""
            found, index = np.unique(tables[at][mask], return_index=True)
            if pos is None:
                return found, None
            return found, pos[at].reshape(*tables[at].shape, size)[mask][index]

        old, places = chosen(page < full[:, None])
        stale = bounds.stale(old)
        if stale.any():
            mine = None if places is None else places[stale]
            bounds.make(group, old[stale], layers, pos=mine, rope_table=rope_table)
        fresh, places = chosen((page >= full[:, None]) & (page < ends[:, None]))
        if len(fresh):
            filled.append((group, fresh, places))
    return filled
