"""Which cached block goes first: orders over small integer ids, driven by inserts, hits and time.

An order keeps a number a block in `rank`; among those that may go, the smallest goes. The same code
orders the blocks of the pool and the references of a trace.
"""

from collections import OrderedDict

import numpy as np

PROTECTED_SHARE = 0.8  # of the cache, for blocks that were hit (SLRU)
GAP_WEIGHT = 0.3  # of the newest reuse gap in the running mean


class _Order:
    """A clock that advances with every event, and the ranks."""

    def __init__(self, num_ids: int) -> None:
        self.rank = np.zeros(num_ids)
        self.now = 0

    def tick(self) -> int:
        """The time of the next event."""
        self.now += 1
        return self.now

    def inserted(self, block: int, cost: float) -> None:
        """By default a block enters at the time it is cached."""
        self.rank[block] = self.tick()

    def hit(self, block: int) -> None:
        """By default a hit changes nothing."""
        self.tick()

    def removed(self, block: int) -> None:
        """By default nothing is remembered."""

    def choose(self, candidates: np.ndarray) -> int:
        """The one with the smallest rank."""
        ids = np.flatnonzero(candidates)
        return int(ids[np.argmin(self.rank[ids])])


class Lru(_Order):
    """The one whose last use is longest ago."""

    def hit(self, block: int) -> None:
        """It is the newest now."""
        self.rank[block] = self.tick()


class Fifo(_Order):
    """The one that was cached first."""


class Lfu(_Order):
    """The one used least often; among equals the least recently used."""

    def __init__(self, num_ids: int) -> None:
        super().__init__(num_ids)
        self._uses = np.zeros(num_ids)

    def inserted(self, block: int, cost: float) -> None:
        """One use: the one that cached it."""
        self._uses[block] = 0
        self.hit(block)

    def hit(self, block: int) -> None:
        """One use more."""
        self._uses[block] += 1
        self.rank[block] = self._uses[block] + self.tick() * 1e-12


class Slru(_Order):
    """Blocks that were never hit again go before those that were (segmented LRU).

    Source: Karedla, Love, Wherry 1994. The protected segment holds at most four fifths of what is
    cached; its oldest falls back.
    """

    def __init__(self, num_ids: int) -> None:
        super().__init__(num_ids)
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._num_cached = 0
        self._lift = 1e12  # any protected rank is above any time

    def inserted(self, block: int, cost: float) -> None:
        """It is on probation."""
        self._num_cached += 1
        self.rank[block] = self.tick()

    def hit(self, block: int) -> None:
        """It is protected; the oldest protected one may fall back to probation."""
        self._protected[block] = None
        self._protected.move_to_end(block)
        self.rank[block] = self._lift + self.tick()
        if len(self._protected) > PROTECTED_SHARE * self._num_cached:
            oldest, _ = self._protected.popitem(last=False)
            self.rank[oldest] = self.tick()

    def removed(self, block: int) -> None:
        """It leaves its segment."""
        self._num_cached -= 1
        self._protected.pop(block, None)


class CostAware(_Order):
    """What saves the least recomputation per byte and use goes first, with aging (GDSF).

    Source: Cherkasova 1998, GreedyDual-Size-Frequency.
    """

    def __init__(self, num_ids: int) -> None:
        super().__init__(num_ids)
        self._uses = np.zeros(num_ids)
        self._cost = np.ones(num_ids)
        self._age = 0.0

    def inserted(self, block: int, cost: float) -> None:
        """Its worth is its cost, on top of the age of the cache."""
        self._uses[block], self._cost[block] = 0, cost
        self.hit(block)

    def hit(self, block: int) -> None:
        """One use more makes it worth more."""
        self._uses[block] += 1
        self.rank[block] = self._age + self._uses[block] * self._cost[block]

    def removed(self, block: int) -> None:
        """What enters later starts at the worth of what went."""
        self._age = max(self._age, float(self.rank[block]))


class Predictive(_Order):
    """The one whose next use is predicted to be furthest away goes first.

    The prediction is the last use plus a running mean of the block's own reuse gaps; a block that
    was never reused is expected at the mean gap of all reuses, and later the longer it waits.
    """

    def __init__(self, num_ids: int) -> None:
        super().__init__(num_ids)
        self._last = np.zeros(num_ids)
        self._gap = np.full(num_ids, np.nan)
        self._mean_gap = 1.0

    def inserted(self, block: int, cost: float) -> None:
        """A block that comes back keeps the gaps it had."""
        self.hit(block)

    def hit(self, block: int) -> None:
        """Learn the gap since the last use."""
        now = self.tick()
        if self._last[block]:
            gap = now - self._last[block]
            old = self._gap[block]
            self._gap[block] = gap if np.isnan(old) else old + GAP_WEIGHT * (gap - old)
            self._mean_gap += GAP_WEIGHT / 100 * (gap - self._mean_gap)
        self._last[block] = now
        known = self._gap[block]
        expected = 2 * self._mean_gap if np.isnan(known) else known
        self.rank[block] = now - expected  # of two equally old ones the longer gap goes first


class Arc(_Order):
    """Recency and frequency balanced by what was missed after it went (adaptive replacement).

    Source: Megiddo and Modha 2003. T1: used once, T2: used again; B1, B2: ids that went from them.
    A hit in a ghost list moves the target size of T1.
    """

    def __init__(self, num_ids: int) -> None:
        super().__init__(num_ids)
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._frequent: OrderedDict[int, None] = OrderedDict()
        self._ghosts: tuple[OrderedDict[int, None], OrderedDict[int, None]] = (
            OrderedDict(), OrderedDict(),
        )  # fmt: skip
        self._target = 0.0

    def inserted(self, block: int, cost: float) -> None:
        """A block that went not long ago shows which list was too short."""
        lost_recent, lost_frequent = self._ghosts
        if block in lost_recent:
            step = max(1.0, len(lost_frequent) / max(1, len(lost_recent)))
            self._target = min(self._target + step, float(self._num_cached))
            del lost_recent[block]
            self._place(block, self._frequent)
        elif block in lost_frequent:
            step = max(1.0, len(lost_recent) / max(1, len(lost_frequent)))
            self._target = max(0.0, self._target - step)
            del lost_frequent[block]
            self._place(block, self._frequent)
        else:
            self._place(block, self._recent)

    def hit(self, block: int) -> None:
        """Used again: it belongs to the frequent ones."""
        self._recent.pop(block, None)
        self._place(block, self._frequent)

    def removed(self, block: int) -> None:
        """It becomes a ghost of its list."""
        for cached, ghosts in zip((self._recent, self._frequent), self._ghosts, strict=True):
            if block in cached:
                del cached[block]
                ghosts[block] = None
                while len(ghosts) > max(1, self._num_cached):
                    ghosts.popitem(last=False)

    @property
    def _num_cached(self) -> int:
        return len(self._recent) + len(self._frequent)

    def _place(self, block: int, cached: OrderedDict[int, None]) -> None:
        cached[block] = None
        cached.move_to_end(block)
        self.rank[block] = self.tick()

    def choose(self, candidates: np.ndarray) -> int:
        """The oldest that may go of the list that is above its target."""
        over = len(self._recent) > self._target
        for cached in (self._recent, self._frequent) if over else (self._frequent, self._recent):
            for block in cached:
                if candidates[block]:
                    return block
        return super().choose(candidates)
