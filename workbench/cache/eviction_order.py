"""Which cached block goes first, where the order is not the free list's own (LRU)."""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from workbench.cache.prefix_index import Row

if TYPE_CHECKING:
    from workbench.cache.block_pool import BlockPool


class EvictionOrder(Protocol):
    """An order over small integer ids (block ids, ids of a trace), told what happens to them."""

    def inserted(self, block: int, cost: float) -> None:
        """A block is cached now; `cost`: what a hit on it saves, relative to others, per byte."""

    def hit(self, block: int) -> None:
        """A cached block was used."""

    def removed(self, block: int) -> None:
        """A block is no longer cached."""

    def choose(self, candidates: np.ndarray) -> int:
        """The one that goes next among `candidates`, bool [num_ids] with at least one."""


class RankedRows:
    """Chooses victims of a pool by an order; a row whose continuation is cached stays before it.

    Without that rule an order that ranks by age would evict the head of a chain first, and all
    that follows could never be hit again.
    """

    def __init__(self, pool: "BlockPool", order: EvictionOrder) -> None:
        self._pool = pool
        self._order = order
        for row in sorted(pool.index.rows(), key=lambda row: pool.last_used[row.blocks[0]]):
            self.inserted(row)

    def inserted(self, row: Row) -> None:
        """A row is visible. Recomputing a block costs more the more tokens lie before it."""
        cost = 1.0 + self._pool.index.depth(row) / 128
        for block in row.blocks:
            self._order.inserted(block, cost)

    def hit(self, block: int) -> None:
        """One more table holds a cached block."""
        self._order.hit(block)

    def removed(self, row: Row) -> None:
        """A row is hidden."""
        for block in row.blocks:
            self._order.removed(block)

    def victim(self, cls: int, kept: np.ndarray | None = None) -> int:
        """The cached, unreferenced block of a class that goes next; there must be one.

        `kept` bool [num_blocks]: those that go only if all do.
        """
        candidates = self._candidates(cls)
        if kept is not None and (candidates & ~kept).any():
            candidates &= ~kept
        first = -1
        while candidates.any():
            block = self._order.choose(candidates)
            row = self._pool.row_of[block]
            if row is not None and not self._pool.index.num_children(row):
                return block
            first = block if first < 0 else first
            candidates[block] = False
        return first

    def walk(self, cls: int) -> list[int]:
        """Cached, unreferenced blocks of a class, next victim first (as things stand now)."""
        candidates, order = self._candidates(cls), []
        while candidates.any():
            order.append(self._order.choose(candidates))
            candidates[order[-1]] = False
        return order

    def _candidates(self, cls: int) -> np.ndarray:
        pool = self._pool
        idle = pool.cached & (pool.ref_cnt == 0)
        idle &= np.repeat(pool.slab_class == cls, pool.stride)
        return idle
