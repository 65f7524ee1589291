"""What is known of the entries of lower tiers besides their bytes: noted when they leave G1."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvkernels.layout import PageSpec

from workbench.cache.keys import PrefixKey, PrivateKey, TierKey
from workbench.cache.prefix_index import Row
from workbench.spatial.hierarchy.mover import TIERS_BELOW
from workbench.temporal.scheduling.swap import SwapRecord

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

MOST_FORGOTTEN = 4096  # notes of entries that may be gone, before they are looked for


@dataclass(frozen=True, slots=True)
class TierNote:
    """Of one entry: its page class and lineage as stored, and its place in the text.

    `page` is the block's number in its text, -1 where that is not known.
    """

    spec: PageSpec
    label: str
    parent_key: PrefixKey
    page: int


class TierNotes:
    """Notes by prefix key, as many as the tiers hold entries and some more."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._notes: dict[PrefixKey, TierNote] = {}

    def left_hbm(self, row: Row) -> None:
        """A tier took a row that is about to leave G1."""
        pool = self._engine.stack.pool
        spec = pool.classes[pool.page_class(row.blocks[0])]
        self._notes[row.key] = TierNote(spec, row.lineage, row.parent_key or b"", self.page_of(row))
        if len(self._notes) > MOST_FORGOTTEN + 2 * self._num_entries():
            self._forget_gone()

    def get(self, key: TierKey) -> TierNote | None:
        """The note of an entry; a swapped page's comes from its request's record."""
        if not isinstance(key, PrivateKey):
            return self._notes.get(key)
        record = swap_record(self._engine, key)
        if record is None:
            return None
        pool = self._engine.stack.pool
        cls = int(record.classes[key.group, key.index])
        return TierNote(pool.classes[max(cls, 0)], record.lineage, b"", key.index)

    def page_of(self, row: Row) -> int:
        """Number of a row's block in its text: its parents, in G1 or noted, back to the first."""
        index, count = self._engine.stack.pool.index, 0
        parent_key = row.parent_key
        while parent_key:
            note = self._notes.get(parent_key)
            if note is not None and note.page >= 0:
                return note.page + 1 + count
            parent = index.get(parent_key)
            if parent is None:
                return -1
            count, parent_key = count + 1, parent.parent_key
        return count

    def _num_entries(self) -> int:
        return self._engine.hierarchy.num_entries

    def _forget_gone(self) -> None:
        held = {row[0] for tier in TIERS_BELOW for row in self._engine.hierarchy.entries(tier)}
        self._notes = {key: note for key, note in self._notes.items() if key in held}


def swap_record(engine: "Engine", key: PrivateKey) -> SwapRecord | None:
    """What was noted when the request of a private page was swapped out, if it still waits."""
    request = engine.requests.get(key.request_id)
    return None if request is None else engine.fetcher.swaps.record(request)
