"""Leases and pins on pages of a shared store, which knows only the holds that it was asked for.

    pinned or leased   the store is asked to hold the page for HOLD_S, again every RENEW_S
    goes last          it is asked for the page, so that it was used just now and does not expire

A store ends holds by itself, so that those of an engine that died do no harm. Valkey and Mooncake
evict by themselves and cannot be asked: nothing holds a page there.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.cache.keys import PrivateKey, TierKey
from workbench.clock import RealClock
from workbench.spatial.hierarchy.medium import HoldingMedium
from workbench.spatial.hierarchy.pins import Hold
from workbench.spatial.hierarchy.slow_tier import SlowTier

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.mover import Mover

HOLD_S = 30.0  # the longest that a store grants
RENEW_S = 10.0
BATCH_KEYS = 4096


def can_hold(tier: SlowTier) -> bool:
    """Whether a lease or a pin keeps a page in a tier: nobody evicts there but us, or who is asked.

    Other engines may still delete what they share with us as objects.
    """
    medium = tier.medium
    return medium is not None and (
        not medium.shared or medium.persistent or isinstance(medium, HoldingMedium)
    )


class StoreHolds:
    """Renews holds while they last; the engine's thread only.

    A store counts real seconds, whatever the engine's clock does.
    """

    def __init__(self, mover: "Mover") -> None:
        self._mover = mover
        self._clock = RealClock()
        self._due_s = 0.0

    def changed(self, key: TierKey) -> None:
        """A key was pinned, or has come to another tier: ask at the next occasion."""
        if self._mover.pins.hold(key) is Hold.HARD:
            self._due_s = 0.0

    def advance(self) -> None:
        """Ask the stores where it is time to."""
        now_s, pins = self._clock.now_s(), self._mover.pins
        if now_s < self._due_s:
            return
        self._due_s = now_s + RENEW_S
        keys = pins.keys()
        for tier in self._mover.ladder.tiers if keys else ():
            self._ask(tier, keys)

    def _ask(self, tier: SlowTier, keys: Sequence[TierKey]) -> None:
        """Queue one call for each time of holding; soft pins have none."""
        pins, by_time = self._mover.pins, defaultdict(list)
        for key in keys:
            if not isinstance(key, PrivateKey) and tier.table.get(key) is not None:
                hard = pins.hold(key) is Hold.HARD
                left_s = min(HOLD_S, pins.left_s(key) or 0.0) if hard else 0.0
                by_time[left_s].append(key)
        for hold_s, some in by_time.items():
            for first in range(0, len(some), BATCH_KEYS):
                tier.hold(some[first : first + BATCH_KEYS], hold_s)
