"""Leases and pins that people and requests ask for, wherever the page of a key lies."""

import math
from collections.abc import Sequence

from workbench.cache.keys import TierKey
from workbench.spatial.hierarchy.mover import G2, Mover
from workbench.spatial.hierarchy.store_holds import can_hold


class Holds:
    """What no tier evicts, or evicts last; the engine's thread only."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    def pin(self, key: TierKey, seconds: float = math.inf, soft: bool = False) -> bool:
        """Let nothing evict a key for so long, by default until it is unpinned.

        False, and nothing is held, where no tier has it that can hold it: see `can_hold`. `soft`:
        it may go, but as last. A tier that is made smaller keeps what is pinned above its cap; one
        that is switched off loses it.
        """
        if not any(holds for _, holds in self.tiers_with(key)):
            return False
        self._mover.pins.pin(key, seconds, soft)
        self._mover.store_holds.changed(key)
        self._mover.show_pins()
        return True

    def unpin(self, key: TierKey) -> None:
        """End a key's pins; one that has none needs nothing."""
        self._mover.pins.unpin(key)
        self._mover.show_pins()

    def keep(self, keys: Sequence[TierKey], seconds: float) -> None:
        """Evict these keys last for so long, wherever they lie or will lie: a soft pin."""
        for key in keys:
            self._mover.pins.pin(key, seconds, soft=True)
        self._mover.show_pins()

    def left_s(self, key: TierKey) -> float | None:
        """Seconds for which a key is pinned or leased yet, infinity for ever; None: it is not."""
        return self._mover.pins.left_s(key)

    def tiers_with(self, key: TierKey) -> list[tuple[str, bool]]:
        """Each tier that has a key, and whether a lease or pin keeps it there."""
        found = [(G2, True)] if self._mover.dram.get(key) is not None else []
        tiers = self._mover.ladder.tiers
        return found + [(tier.name, can_hold(tier)) for tier in tiers if tier.table.get(key)]

    def renew(self) -> None:
        """Ask shared stores again to hold what is held here; an engine that idles has to, too."""
        self._mover.store_holds.advance()
