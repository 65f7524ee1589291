"""The tables a step reads: one for each page class among the pages of its requests."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from workbench.cache.block_state import kind_parts
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.request_blocks import RequestBlocks
from workbench.cache.rope_mode import RopeMode
from workbench.request import Request


@dataclass(frozen=True)
class ClassTables:
    """Pages of one class that a step reads: offsets int64 [G, R, P], slots int32 [G, R].

    `page_offsets`, `kv_lens`, `log_count`, `pos` and `pages` may be tensors, of pages that a kernel
    chose: then they stay on its device.

    `new_lens` int32 [R] or None: all new tokens are written here; zeros: none are. `new_starts`
    int32 [R] or None: the first of them among a request's new tokens. `log_count` fp32 [G, R, P *
    S] or None: log of the tokens that each slot stands for (merging). `pos` int32 alike: position
    of each slot, where keys are rotated as they are read. `pages` int64 [G, R, P] or None: which
    pages of the whole table they are, where they are not all. `basis`: number of their keys'.
    """

    cls: int
    page_offsets: np.ndarray | Tensor
    kv_lens: np.ndarray | Tensor
    new_lens: np.ndarray | None = None
    log_count: np.ndarray | Tensor | None = None
    pos: np.ndarray | Tensor | None = None
    new_starts: np.ndarray | None = None
    pages: np.ndarray | Tensor | None = None
    basis: int = 0

    @cached_property
    def num_pages(self) -> int:
        """Pages of these tables."""
        return int((self.page_offsets >= 0).sum())


def class_tables(
    manager: KVCacheManager,
    requests: list[Request],
    groups: tuple[int, ...],
    q_lens: np.ndarray,
    mode: RopeMode = "stored",
) -> list[ClassTables]:
    """The tables of some groups for `q_lens` int32 [R] new tokens, which go to open pages."""
    tables = [manager.requests[request.request_id] for request in requests]
    kv_lens = np.stack([blocks.stored_len[list(groups)] for blocks in tables], 1) + q_lens
    width = int(-(-kv_lens.max() // manager.block_size))
    table = np.stack([blocks.table[list(groups), :width] for blocks in tables], 1)  # [G, R, P]
    pos = None
    if mode != "stored":
        slots = width * manager.block_size
        pos = np.stack([_positions(request, blocks, groups, slots, mode)
                        for request, blocks in zip(requests, tables, strict=True)], 1)  # fmt: skip
    if manager.roles.mixes:
        held = slots_of_pages(kv_lens, width, manager.block_size)
        new = held - slots_of_pages(kv_lens - q_lens, width, manager.block_size)
        return _by_class(manager, table, held, new, pos)
    offsets = manager.pool.offset[table]
    _pad(offsets, -(-kv_lens // manager.block_size))
    counts = _log_counts(tables, groups, width * manager.block_size)
    return [ClassTables(manager.classes[groups[0]], offsets, kv_lens, None, counts, pos)]


def slots_of_pages(kv_lens: np.ndarray, width: int, block_size: int) -> np.ndarray:
    """Slots in each of `width` pages of tables that hold `kv_lens` int [G, R] of them."""
    slots: np.ndarray = np.clip(
        kv_lens[..., None] - block_size * np.arange(width), 0, block_size
    )  # [G, R, P]
    return slots


def _positions(
    request: Request, blocks: RequestBlocks, groups: tuple[int, ...], num_slots: int, mode: RopeMode
) -> np.ndarray:
    """Positions of some groups' slots, int32 [G, num_slots], of stored and of new tokens.

    Compact ranks are moved up so that the first new token has its place in the text, as its query
    has: only differences count, and one query then serves groups that store different numbers.
    """
    if mode == "original":
        return blocks.pos[list(groups), :num_slots]
    first = request.num_computed_tokens - blocks.stored_len[list(groups), None]
    return np.arange(num_slots, dtype=np.int32) + first.astype(np.int32)


def _log_counts(
    tables: list[RequestBlocks], groups: tuple[int, ...], num_slots: int
) -> np.ndarray | None:
    """None where no slot stands for several tokens."""
    if all(blocks.log_count is None for blocks in tables):
        return None
    counts = np.zeros((len(groups), len(tables), num_slots), np.float32)
    for row, blocks in enumerate(tables):
        if blocks.log_count is not None:
            counts[:, row] = blocks.log_count[list(groups), :num_slots]
    return counts


def _by_class(
    manager: KVCacheManager,
    table: np.ndarray,
    slots: np.ndarray,
    new: np.ndarray,
    pos: np.ndarray | None,
) -> list[ClassTables]:
    """The pages of each class keep their order, and close up where another's lay between them.

    slots, new: int [G, R, P], slots of each page that are read, and those written in this step.
    """
    size = manager.block_size
    classes = np.where(slots > 0, manager.pool.page_classes(table), -1)
    for alone, both in manager.roles.joined.items():
        classes[classes == alone] = both
    bases = manager.pool.basis[table].astype(np.int64)
    kinds = np.where(classes >= 0, classes + (bases << 16), -1)
    found = []
    for kind in np.unique(kinds[kinds >= 0]).tolist():
        mine, (cls, basis) = kinds == kind, kind_parts(kind)
        count = mine.sum(-1)
        order = np.argsort(~mine, axis=-1, kind="stable")[..., : int(count.max())]
        offsets = manager.pool.offset[np.take_along_axis(table, order, -1)]
        _pad(offsets, count)
        lens = (slots * mine).sum(-1).astype(np.int32)
        new_lens, new_starts = _new_tokens(new[0], mine[0])
        places = None
        if pos is not None:
            paged = pos.reshape(*table.shape, size)
            places = np.take_along_axis(paged, order[..., None], 2).reshape(*order.shape[:2], -1)
        found.append(
            ClassTables(cls, offsets, lens, new_lens, None, places, new_starts, order, basis)
        )
    return found


def _new_tokens(new: np.ndarray, mine: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """How many new tokens a class gets, and from which on; new, mine [R, P], of any group.

    Groups differ only in pages that were dropped, which are full: new tokens lie alike in all.
    """
    lens = (new * mine).sum(-1)
    if (lens == new.sum(-1)).all():
        return None, None
    before = np.where(mine & (new > 0), new.cumsum(-1) - new, new.sum(-1, keepdims=True)).min(-1)
    return lens.astype(np.int32), np.where(lens > 0, before, 0).astype(np.int32)


def _pad(offsets: np.ndarray, used: np.ndarray) -> None:
    """Pages behind the `used` ones of each table are none: -1."""
    offsets[np.arange(offsets.shape[-1]) >= used[..., None]] = -1
