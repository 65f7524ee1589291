"""What the tiers know already of a page that comes down: its like is there, or it is out of date.

A private page carries the epoch of its request's swap: a newer epoch drops the pages before it.
"""

from workbench.cache.keys import PrivateKey, TierKey
from workbench.spatial.hierarchy.entries import EntryTable
from workbench.spatial.hierarchy.mover import Mover


class Intake:
    """Looks at each page before it is stored, over all tiers; the engine's thread only."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._epochs: dict[str, int] = {}

    def touch(self, key: TierKey, page_bytes: int) -> bool:
        """Whether a tier has this page and gives it back; where it lies it was used just now."""
        held = self._touched(self._mover.dram, key, page_bytes)
        for tier in self._mover.ladder.tiers:
            # A shared medium may have evicted it, and one that fails does not give it back.
            sure = tier.readable and not tier.shared
            held |= self._touched(tier.table, key, page_bytes) and sure
        return held

    def renew(self, key: PrivateKey) -> bool:
        """Make way for a private page; False where a newer epoch of its request is known."""
        epoch = self._epochs.get(key.request_id, -1)
        if key.epoch < epoch:
            return False
        if key.epoch > epoch:
            self.drop(key.request_id)
            self._epochs[key.request_id] = key.epoch
        for table in self._mover.tables:
            entry = table.get(key)
            if entry is not None:
                table.remove(entry)
        return True

    def drop(self, request_id: str) -> None:
        """Forget every private entry of a request."""
        self._epochs.pop(request_id, None)
        for table in self._mover.tables:
            for entry in table.private_entries(request_id):
                table.remove(entry)

    def clear(self) -> None:
        """Forget all epochs."""
        self._epochs.clear()

    def _touched(self, table: EntryTable, key: TierKey, page_bytes: int) -> bool:
        entry = table.get(key)
        if entry is None:
            return False
        if entry.page_bytes != page_bytes:
            table.remove(entry)
            return False
        table.touch(entry)
        return True
