"""What happened: a bounded ring of events for people, and beside it the stream for routers."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from workbench.cache.prefix_index import Row
from workbench.clock import Clock
from workbench.engine.journeys import Journeys
from workbench.engine.kv_stream import KvStream, OnKvEvents
from workbench.events import EVENT_KINDS, Event

RING = 10_000
# events worth the one plain sentence on the page; the others stay in the list
SENTENCE_KINDS = (
    "share",
    "evict",
    "load",
    "preempt",
    "fail",
    "apply",
    "retain",
    "tier_fault",
    "refuse",
    "thrash",
)
# blocks move one by one; within a step their events become one, with sums
MERGED_KINDS = ("evict", "store")
MERGE_ALIKE = ("tier", "from_tier", "to_tier", "for_request_id")
MERGE_SUMS = ("num_blocks", "num_bytes")


class EventLog:
    """Numbers events from `last_seq` + 1 on, keeps the newest; `kv` is the stream for routers."""

    def __init__(
        self,
        clock: Clock,
        on_kv_events: OnKvEvents | None,
        last_seq: int = 0,
    ) -> None:
        self.journeys = Journeys(clock)
        self.kv = KvStream(clock, on_kv_events)
        self.sentence: Event | None = None
        self.totals: dict[str, int] = dict.fromkeys(EVENT_KINDS, 0)
        self._clock = clock
        self._ring: deque[Event] = deque(maxlen=RING)
        self.last_seq = last_seq

    @property
    def step(self) -> int:
        """Step of the engine that what is told happens in."""
        return self.journeys.step

    @step.setter
    def step(self, step: int) -> None:
        self.journeys.step = step

    def tell(self, kind: str, request_id: str = "", **data: Any) -> None:
        """Record an event; `data` are the numbers its sentence needs."""
        if kind not in EVENT_KINDS:
            raise ValueError(f"unknown event kind {kind!r}")
        self.totals[kind] += 1
        data = self._merged(kind, request_id, data)
        self.last_seq += 1
        event = Event(
            seq=self.last_seq,
            step=self.step,
            time_s=self._clock.now_s(),
            kind=kind,
            request_id=request_id,
            data=data,
        )
        self._ring.append(event)
        if kind in SENTENCE_KINDS:
            self.sentence = event

    def _merged(self, kind: str, request_id: str, data: dict[str, Any]) -> dict[str, Any]:
        """Add to an event of this step that tells the same, so that one sentence has the sum."""
        if kind not in MERGED_KINDS or not self._ring:
            return data
        last = self._ring[-1]
        same = (last.kind, last.step, last.request_id) == (kind, self.step, request_id)
        if not same or any(last.data.get(key) != data.get(key) for key in MERGE_ALIKE):
            return data
        self._ring.pop()
        return data | {
            key: last.data.get(key, 0) + data.get(key, 0) for key in MERGE_SUMS if key in data
        }

    def since(self, seq: int, limit: int = RING) -> list[Event]:
        """Events after number `seq`, oldest first, the newest `limit` of them."""
        found: list[Event] = []
        for event in reversed(self._ring):
            if event.seq <= seq or len(found) >= limit:
                break
            found.append(event)
        return found[::-1]

    def on_stored(self, row: Row) -> None:
        """A row became visible in HBM."""
        self.journeys.note(row.key.hex(), "entered", "G1")
        self.kv.row_stored(row)

    def on_removed(self, row: Row) -> None:
        """A row is no longer visible in HBM."""
        self.kv.rows_removed([row])

    def on_cleared(self, rows: Sequence[Row]) -> None:
        """All these rows are no longer visible in HBM, at once."""
        self.kv.rows_removed(rows)
