"""What happened: a bounded ring of events for people, and KV events in vLLM's schema."""

from collections import deque
from collections.abc import Callable
from typing import Any

from workbench.cache.prefix_index import Row
from workbench.clock import Clock
from workbench.engine.journeys import Journeys
from workbench.events import (
    EVENT_KINDS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    KVEventBatch,
)

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
    """Numbers events, keeps the newest, and gathers one step's KV events into a batch.

    Events are numbered from `last_seq` + 1 on. The KV stream begins with AllBlocksCleared: what a
    subscriber still knows of an earlier engine is void (vLLM's numbers just start over at 0).
    """

    def __init__(
        self,
        clock: Clock,
        on_kv_events: Callable[[KVEventBatch], None] | None,
        block_size: int,
        last_seq: int = 0,
    ) -> None:
        self.journeys = Journeys(clock)
        self.block_size = block_size
        self.sentence: Event | None = None
        self.totals: dict[str, int] = dict.fromkeys(EVENT_KINDS, 0)
        self._clock = clock
        self._ring: deque[Event] = deque(maxlen=RING)
        self.last_seq = last_seq
        self._kv: list[BlockStored | BlockRemoved | AllBlocksCleared] = [AllBlocksCleared()]
        self._on_kv_events = on_kv_events

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
        self._kv.append(
            BlockStored(
                block_hashes=[row.key],
                parent_block_hash=row.parent_key,
                token_ids=list(row.token_ids),
                block_size=self.block_size,
                medium="GPU",
            )
        )

    def on_removed(self, row: Row) -> None:
        """A row is no longer visible in HBM."""
        self._kv.append(BlockRemoved(block_hashes=[row.key], medium="GPU"))

    def on_cleared(self) -> None:
        """Every block was dropped."""
        self._kv.append(AllBlocksCleared())

    def flush_kv(self) -> KVEventBatch | None:
        """Close the step's batch of KV events and hand it to the subscriber."""
        if not self._kv:
            return None
        batch = KVEventBatch(ts=self._clock.wall_s(), events=self._kv, data_parallel_rank=0)
        self._kv = []
        if self._on_kv_events is not None:
            self._on_kv_events(batch)
        return batch
