"""Which cached row goes first: orders over the slots of a cache, driven by inserts, hits and time.

An order keeps a number a slot in `rank`; among those that may go, the smallest goes, of equal ones
the least recently used. A slot is used again for another content, so what is to outlive an eviction
is kept by content. The same code orders the rows of the pool and the references of a trace.
"""

from collections import OrderedDict
from collections.abc import Hashable

import numpy as np

PROTECTED_SHARE = 0.8  # of the cache, for rows that were hit (SLRU)
GAP_WEIGHT = 0.3  # of the newest reuse gap in the running mean
REMEMBERED_GAPS = 65536  # contents that went, of which the gaps are known yet


class _Order:
    """A clock that advances with every event, ranks, and the content of each slot."""

    def __init__(self, num_slots: int) -> None:
        self.rank = np.zeros(num_slots)
        self.used = np.zeros(num_slots, np.int64)  # time of its last event
        self.content: list[Hashable] = [None] * num_slots
        self.now = 0

    def use(self, slot: int) -> int:
        """Something happens to a slot; returns the time of it."""
        self.now += 1
        self.used[slot] = self.now
        return self.now

    def inserted(self, slot: int, content: Hashable, cost: float) -> None:
        """By default a content enters at the time it is cached."""
        self.content[slot] = content
        self.rank[slot] = self.use(slot)

    def hit(self, slot: int) -> None:
        """By default a hit changes nothing."""
        self.use(slot)

    def removed(self, slot: int) -> None:
        """By default nothing is remembered."""

    def choose(self, candidates: np.ndarray) -> int:
        """The one with the smallest rank."""
        slots = np.flatnonzero(candidates)
        ranks = self.rank[slots]
        lowest = slots[ranks == ranks.min()]
        return int(lowest[np.argmin(self.used[lowest])])


class Lru(_Order):
    """The one whose last use is longest ago."""

    def hit(self, slot: int) -> None:
        """It is the newest now."""
        self.rank[slot] = self.use(slot)


class Fifo(_Order):
    """The one that was cached first."""


class Lfu(_Order):
    """The one used least often while it is cached; among equals the least recently used."""

    def inserted(self, slot: int, content: Hashable, cost: float) -> None:
        """One use: the one that cached it."""
        self.rank[slot] = 0
        self.hit(slot)

    def hit(self, slot: int) -> None:
        """One use more."""
        self.use(slot)
        self.rank[slot] += 1


class Slru(_Order):
    """Rows that were never hit again go before those that were (segmented LRU).

    Source: Karedla, Love, Wherry 1994. The protected segment holds at most four fifths of what is
    cached; its oldest falls back.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._num_cached = 0
        self._lift = 1e12  # any protected rank is above any time

    def inserted(self, slot: int, content: Hashable, cost: float) -> None:
        """It is on probation."""
        self._num_cached += 1
        self.rank[slot] = self.use(slot)

    def hit(self, slot: int) -> None:
        """It is protected; the oldest protected one may fall back to probation."""
        self._protected[slot] = None
        self._protected.move_to_end(slot)
        self.rank[slot] = self._lift + self.use(slot)
        if len(self._protected) > PROTECTED_SHARE * self._num_cached:
            oldest, _ = self._protected.popitem(last=False)
            self.rank[oldest] = self.use(oldest)

    def removed(self, slot: int) -> None:
        """It leaves its segment."""
        self._num_cached -= 1
        self._protected.pop(slot, None)


class CostAware(_Order):
    """What saves the least recomputation per byte and use goes first, with aging (GDSF).

        worth = age + uses * cost,   cost = time to compute the row again / its bytes
        age   = the greatest worth of a row that went

    Source: Cherkasova 1998, GreedyDual-Size-Frequency. A common factor of all costs changes no
    order, since the age grows by it too; so a cost may be in any unit, but always in the same.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._uses = np.zeros(num_slots)
        self._cost = np.ones(num_slots)
        self._age = 0.0

    def inserted(self, slot: int, content: Hashable, cost: float) -> None:
        """Its worth is its cost, on top of the age of the cache."""
        self._uses[slot], self._cost[slot] = 0, cost
        self.hit(slot)

    def hit(self, slot: int) -> None:
        """One use more makes it worth more."""
        self.use(slot)
        self._uses[slot] += 1
        self.rank[slot] = self._age + self._uses[slot] * self._cost[slot]

    def removed(self, slot: int) -> None:
        """What enters later starts at the worth of what went."""
        self._age = max(self._age, float(self.rank[slot]))


class Predictive(_Order):
    """The one whose next use is predicted to be furthest away goes first.

    The prediction is the last use plus a running mean of the content's own reuse gaps; one that was
    never reused is expected at the mean gap of all reuses, and later the longer it waits. Gaps of
    the last `REMEMBERED_GAPS` contents that went are kept, and go on when they come back.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._last = np.zeros(num_slots)
        self._gap = np.full(num_slots, np.nan)
        self._mean_gap = 1.0
        self._gone: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # last use, gap

    def inserted(self, slot: int, content: Hashable, cost: float) -> None:
        """A content that comes back keeps the gaps it had."""
        self.content[slot] = content
        self._last[slot], self._gap[slot] = self._gone.pop(content, (0.0, np.nan))
        self.hit(slot)

    def hit(self, slot: int) -> None:
        """Learn the gap since the last use."""
        now = self.use(slot)
        if self._last[slot]:
            gap = now - self._last[slot]
            old = self._gap[slot]
            self._gap[slot] = gap if np.isnan(old) else old + GAP_WEIGHT * (gap - old)
            self._mean_gap += GAP_WEIGHT / 100 * (gap - self._mean_gap)
        self._last[slot] = now
        known = self._gap[slot]
        expected = 2 * self._mean_gap if np.isnan(known) else known
        self.rank[slot] = now - expected  # of two equally old ones the longer gap goes first

    def removed(self, slot: int) -> None:
        """Its content's gaps stay known for a while."""
        self._gone[self.content[slot]] = (float(self._last[slot]), float(self._gap[slot]))
        if len(self._gone) > REMEMBERED_GAPS:
            self._gone.popitem(last=False)


class Arc(_Order):
    """Recency and frequency balanced by what was missed after it went (adaptive replacement).

    Source: Megiddo and Modha 2003. T1: used once, T2: used again, by slot; B1, B2: contents that
    went from them (ghosts). Finding a ghost moves the target size of T1. With c, the most that was
    cached at once, T1 and B1 have at most c entries and all four 2 c.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._frequent: OrderedDict[int, None] = OrderedDict()
        self._ghosts: tuple[OrderedDict[Hashable, None], OrderedDict[Hashable, None]] = (
            OrderedDict(), OrderedDict(),
        )  # fmt: skip
        self._target = 0.0
        self._most = 0
        self.num_ghost_hits = 0

    def inserted(self, slot: int, content: Hashable, cost: float) -> None:
        """A content that went not long ago shows which list was too short."""
        self.content[slot] = content
        lost_recent, lost_frequent = self._ghosts
        if content in lost_recent:
            step = max(1.0, len(lost_frequent) / len(lost_recent))
            self._target = min(self._target + step, float(self._most))
        elif content in lost_frequent:
            step = max(1.0, len(lost_recent) / len(lost_frequent))
            self._target = max(0.0, self._target - step)
        else:
            self._place(slot, self._recent)
            return self._bound()
        self.num_ghost_hits += 1
        for ghosts in self._ghosts:
            ghosts.pop(content, None)
        self._place(slot, self._frequent)

    def hit(self, slot: int) -> None:
        """Used again: it belongs to the frequent ones."""
        self._recent.pop(slot, None)
        self._place(slot, self._frequent)

    def removed(self, slot: int) -> None:
        """Its content becomes a ghost of its list."""
        for cached, ghosts in zip((self._recent, self._frequent), self._ghosts, strict=True):
            if slot in cached:
                del cached[slot]
                ghosts[self.content[slot]] = None

    def _place(self, slot: int, cached: OrderedDict[int, None]) -> None:
        cached[slot] = None
        cached.move_to_end(slot)
        self.rank[slot] = self.use(slot)

    def _bound(self) -> None:
        """Forget the oldest ghosts beyond the size of the directory."""
        lost_recent, lost_frequent = self._ghosts
        num_cached = len(self._recent) + len(self._frequent)
        self._most = max(self._most, num_cached)
        while lost_recent and len(self._recent) + len(lost_recent) > self._most:
            lost_recent.popitem(last=False)
        while lost_frequent and num_cached + len(lost_recent) + len(lost_frequent) > 2 * self._most:
            lost_frequent.popitem(last=False)

    def choose(self, candidates: np.ndarray) -> int:
        """The oldest that may go of the list that is above its target."""
        over = len(self._recent) > self._target
        for cached in (self._recent, self._frequent) if over else (self._frequent, self._recent):
            for slot in cached:
                if candidates[slot]:
                    return slot
        return super().choose(candidates)
