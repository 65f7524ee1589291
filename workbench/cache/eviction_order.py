"""Which cached row goes first, where the order is not the free list's own (LRU)."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from workbench.cache.prefix_index import Row

if TYPE_CHECKING:
    from workbench.cache.block_pool import BlockPool

# work(num_tokens, first_token): time to compute so many tokens behind a prefix of `first_token`, in
# any unit that stays the same
Work = Callable[[int, int], float]


class EvictionOrder(Protocol):
    """An order over the slots of a cache, told what happens to the content of each.

    A slot is used again when its content has gone; what outlives that belongs to the content.
    """

    def inserted(self, slot: int, content: Hashable, cost: float) -> None:
        """A content is cached now; `cost`: what a hit on it saves, relative to others, per byte."""

    def hit(self, slot: int) -> None:
        """What is cached in a slot was used."""

    def removed(self, slot: int) -> None:
        """What was in a slot is no longer cached."""

    def choose(self, candidates: np.ndarray) -> int:
        """The one that goes next among `candidates`, bool [num_slots] with at least one."""


class RankedRows:
    """Chooses victims of a pool by an order; a row whose continuation is cached stays before it.

    Without that rule an order that ranks by age would evict the head of a chain first, and all
    that follows could never be hit again. A row goes as a whole, so it is one content, known by its
    key; its slot is its first block's id.
    """

    def __init__(self, pool: "BlockPool", order: EvictionOrder, work: Work) -> None:
        self._pool = pool
        self._order = order
        self._work = work
        self._slot = np.zeros(len(pool.row_of), np.int64)  # of the row that a cached block is in
        self._is_leaf = np.ones(len(pool.row_of), bool)  # by slot: no cached row continues it
        for row in sorted(pool.index.rows(), key=lambda row: pool.last_used[row.blocks[0]]):
            self.inserted(row)

    def inserted(self, row: Row) -> None:
        """A row is visible."""
        self._slot[list(row.blocks)] = row.blocks[0]
        self._is_leaf[row.blocks[0]] = not self._pool.index.num_children(row)
        self._note_parent(row)
        self._order.inserted(row.blocks[0], row.key, self.cost(row))

    def cost(self, row: Row) -> float:
        """What a hit on a row saves per byte: the work of computing it again over its pages' bytes.

        recompute = prefill(n | prefix), as the gate compares it (the reference on tiers, 1.13).
        """
        pool, num_tokens = self._pool, len(row.token_ids)
        page_bytes = [pool.classes[pool.page_class(block)].page_bytes for block in row.blocks]
        return self._work(num_tokens, row.page * num_tokens) / sum(page_bytes)

    def hit(self, block: int) -> None:
        """One more table holds a cached block; a table holds a row's blocks all at once."""
        if self._slot[block] == block:
            self._order.hit(block)

    def removed(self, row: Row) -> None:
        """A row is hidden."""
        self._note_parent(row)
        self._order.removed(row.blocks[0])

    def _note_parent(self, row: Row) -> None:
        """Whether what a row continues is a leaf now."""
        index = self._pool.index
        parent = index.get(row.parent_key) if row.parent_key else None
        if parent is not None:
            self._is_leaf[parent.blocks[0]] = not index.num_children(parent)

    def victim(self, cls: int, kept: np.ndarray | None = None) -> int:
        """The cached, unreferenced block of a class that goes next; there must be one.

        `kept` bool [num_blocks]: those that go only if all do.
        """
        idle = self._idle(cls)
        if kept is not None and (idle & ~kept).any():
            idle &= ~kept
        candidates = self._slots(idle)
        leaves = candidates & self._is_leaf
        row = self._row(self._order.choose(leaves if leaves.any() else candidates))
        return next(block for block in row.blocks if idle[block])

    def walk(self, cls: int) -> list[int]:
        """Cached, unreferenced blocks of a class, next victim first (as things stand now)."""
        idle = self._idle(cls)
        candidates, order = self._slots(idle), list[int]()
        while candidates.any():
            slot = self._order.choose(candidates)
            order += [block for block in self._row(slot).blocks if idle[block]]
            candidates[slot] = False
        return order

    def _row(self, slot: int) -> Row:
        row = self._pool.row_of[slot]
        assert row is not None, f"slot {slot} is cached without a row"
        return row

    def _idle(self, cls: int) -> np.ndarray:
        """Cached blocks of a class that no table holds, bool [num_blocks]."""
        pool = self._pool
        idle = pool.cached & (pool.ref_cnt == 0)
        idle &= np.repeat(pool.slab_class == cls, pool.stride)
        return idle

    def _slots(self, idle: np.ndarray) -> np.ndarray:
        """Slots of the rows that some blocks belong to, bool [num_blocks]."""
        slots = np.zeros(len(idle), bool)
        slots[self._slot[idle]] = True
        return slots
