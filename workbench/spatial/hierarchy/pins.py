"""Which keys eviction spares: leases and hard pins hold a key, a soft pin makes it go last.

    hard, until its time (infinity: until it is unpinned)     no tier evicts the key
    soft, until its time                                      evicted once nothing else can be

A pin belongs to a key, so it goes with the page from tier to tier. The two kinds are Mooncake
Store's (its soft pin: 30 minutes, evicted only where nothing else is left).
"""

import math
from collections.abc import Callable
from enum import IntEnum

from workbench.cache.keys import TierKey


class Hold(IntEnum):
    """What keeps an entry in its tier; from HARD on nothing evicts it."""

    NONE = 0
    SOFT = 1  # goes last
    HARD = 2  # a lease or a pin
    BUSY = 3  # its bytes are being moved


class Pins:
    """Ends of leases and pins by key; `now_s` is the engine's clock, and so are all times."""

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self.now_s = now_s
        self._hard: dict[TierKey, float] = {}
        self._soft: dict[TierKey, float] = {}
        self._next_end_s = math.inf

    def pin(self, key: TierKey, seconds: float, soft: bool = False) -> None:
        """Hold a key for so long from now, whatever held it in that way before."""
        until_s = self.now_s() + seconds
        (self._soft if soft else self._hard)[key] = until_s
        self._next_end_s = min(self._next_end_s, until_s)

    def unpin(self, key: TierKey) -> None:
        """End both kinds; a key that has none needs nothing."""
        self._hard.pop(key, None)
        self._soft.pop(key, None)

    def keys(self) -> list[TierKey]:
        """Every key that is pinned or leased, or goes last."""
        return list(self._hard | self._soft) if self._hard or self._soft else []

    def hold(self, key: TierKey) -> Hold:
        """Which kind holds a key now."""
        if not self._hard and not self._soft:
            return Hold.NONE
        now_s = self.now_s()
        if self._hard.get(key, -math.inf) > now_s:
            return Hold.HARD
        return Hold.SOFT if self._soft.get(key, -math.inf) > now_s else Hold.NONE

    def left_s(self, key: TierKey) -> float | None:
        """Seconds that the kind which holds a key has left (infinity for ever); None for none."""
        hold = self.hold(key)
        if hold is Hold.NONE:
            return None
        return (self._hard if hold is Hold.HARD else self._soft)[key] - self.now_s()

    def clear(self) -> None:
        """End all pins."""
        self._hard.clear()
        self._soft.clear()

    def expire(self) -> bool:
        """Drop what has ended; whether anything has."""
        now_s = self.now_s()
        if now_s < self._next_end_s:
            return False
        for held in (self._hard, self._soft):
            for key in [key for key, until_s in held.items() if until_s <= now_s]:
                del held[key]
        ends = [*self._hard.values(), *self._soft.values()]
        self._next_end_s = min(ends, default=math.inf)
        return True
