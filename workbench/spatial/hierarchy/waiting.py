"""What tiers know of pages that waiting requests will need, and how they keep them until then."""

from collections.abc import Sequence

from workbench.cache.keys import TierKey
from workbench.spatial.hierarchy.entries import State
from workbench.spatial.hierarchy.mover import Mover


class Waiting:
    """Implements `BeforeTurn`; the engine's thread only, and never blocking on I/O."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    @property
    def can_stage(self) -> bool:
        """Whether there is DRAM that pages can come up to before their request's turn."""
        return self._mover.dram.capacity_bytes > 0

    def num_held(self, keys: Sequence[TierKey]) -> int:
        """How many leading keys lie in DRAM or can come up; counts no lookups."""
        mover = self._mover
        for at, key in enumerate(keys):
            entry = mover.dram.get(key)
            if (entry is None or entry.state is not State.READY) and not mover.ladder.source(key):
                return at
        return len(keys)

    def is_coming(self, key: TierKey) -> bool:
        """Whether a key is being written to a tier now."""
        found = (table.get(key) for table in self._mover.tables)
        return any(entry is not None and entry.state is State.WRITING for entry in found)

    def hold(self, keys: Sequence[TierKey]) -> None:
        """Ask media from which others evict to keep these keys for `HOLD_S`."""
        for tier in self._mover.ladder.tiers:
            tier.hold([key for key in keys if tier.table.get(key) is not None])
