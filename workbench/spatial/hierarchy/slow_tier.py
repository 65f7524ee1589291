"""A tier below DRAM: what it holds and may take, and its traffic with the medium that keeps it.

    engine's thread                       |  the tier's thread
    table, counters, throttle, answers    |  codec, medium, checksums

A tier alone verifies what comes back from its medium, so no medium has to be trusted.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.cache.keys import PrivateKey, TierKey
from workbench.cache.tier import HOLD_S
from workbench.clock import Clock
from workbench.errors import TierError
from workbench.spatial.hierarchy.bandwidth import TransferFit
from workbench.spatial.hierarchy.codec_edge import CodecEdge
from workbench.spatial.hierarchy.counters import TierCounters
from workbench.spatial.hierarchy.entries import Entry, EntryTable, State, Watch
from workbench.spatial.hierarchy.io_counts import IoTotals, totals_of
from workbench.spatial.hierarchy.io_thread import (
    GET,
    MOST_AT_ONCE,
    PUT,
    REMOVE,
    IoThread,
    Op,
    Outcome,
    nothing,
)
from workbench.spatial.hierarchy.medium import (
    HoldingMedium,
    Medium,
    PageRecord,
    encode_key,
    is_private,
)
from workbench.spatial.hierarchy.medium_calls import MediumCalls, Page
from workbench.spatial.hierarchy.outages import Outage, restore
from workbench.spatial.hierarchy.paced_link import PacedLink
from workbench.spatial.hierarchy.patience import Health
from workbench.spatial.hierarchy.pins import Pins
from workbench.spatial.hierarchy.shared_answers import SharedAnswers
from workbench.spatial.hierarchy.slice_batch import SliceReads
from workbench.spatial.hierarchy.throttle import paced_s

SCAN_WAIT_S = 0.2  # that others' storage may take of the engine's thread when it is opened


@dataclass(frozen=True)
class Place:
    """Which medium a tier lies on; `keep` its pages when it is closed.

    `transport`: where another one takes a medium opened anew.
    """

    kind: str
    address: str = ""
    keep: bool = False
    transport: str = "direct"


class SlowTier:
    """One tier on one medium at a time; all methods belong to the engine's thread."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        counters: TierCounters,
        next_generation: Callable[[], int],
        pins: Pins,
        watch: Watch,
    ) -> None:
        self.name = name
        self.clock = clock
        self.counters = counters
        self.health = Health(clock, counters)
        self.bucket = PacedLink(clock)
        self.edge = CodecEdge()
        self.medium: Medium | None = None
        self.where: Place | None = None
        self.cap_bytes = 0  # of the medium, in all
        self.table = EntryTable(name, 0, self._release, pins, watch)
        self.calls = MediumCalls(self.edge, clock)
        self.io = IoThread(f"kv-tier-{name}", self.calls.perform)
        self.slices = SliceReads(self.io, self.calls)
        self.writing_bytes = 0  # of writes that have not taken effect
        self.outage: Outage | None = None  # made by hand
        self.copying_bytes = 0  # of pages that stay in DRAM while they are written
        self._scanning = False  # until it is known what lies there, nobody knows what has room
        self._next_generation = next_generation
        self._ios_before: IoTotals | None = None
        self.answers = SharedAnswers(self)

    # ---- what it is

    @property
    def on(self) -> bool:
        """Whether pages can be stored."""
        return self.medium is not None

    @property
    def shared(self) -> bool:
        """Whether others put and remove pages too."""
        return self.medium is not None and self.medium.shared

    @property
    def evicts_itself(self) -> bool:
        """Whether somebody else's pool keeps its own cap: a victim is only forgotten here."""
        others = self.where is not None and bool(self.where.address)
        return self.medium is not None and self.shared and not self.medium.persistent and others

    @property
    def place(self) -> str:
        """Where the medium lies, empty when off."""
        return self.medium.place if self.medium is not None else ""

    @property
    def readable(self) -> bool:
        """Whether it is on, and reads have not failed so often just now that it is left alone."""
        return self.on and self.health.reads

    @property
    def left_alone(self) -> bool:
        """Whether it has failed so often just now that it is not asked."""
        return self.on and not (self.health.reads and self.health.writes)

    def takes(self, key: TierKey) -> bool:
        """Whether a key may be kept here: what belongs to one request goes to nobody else."""
        if self.shared and isinstance(key, PrivateKey):
            return False
        return self.on and self.health.writes and not self._scanning

    def charge(self, page_bytes: int, num_slices: int, key_bytes: int = 33) -> int:
        """Bytes to reserve for a page."""
        record = PageRecord(bytes(key_bytes), page_bytes, (0,) * num_slices, page_bytes)
        return self.medium.charge_bytes(record) if self.medium is not None else page_bytes

    def estimate_s(self, sizes: Sequence[int]) -> float:
        """Predicted seconds to read pages of these sizes, in batches, after what is queued."""
        fit, now_s = self.counters.load_fit, self.clock.now_s()
        queued = self.io.backlog_bytes - self.io.store_bytes  # loads go first
        return paced_s(fit, self.bucket, sizes, queued, now_s, MOST_AT_ONCE)

    @property
    def ios(self) -> IoTotals | None:
        """What its medium was asked for since it was measured; None where that is not counted."""
        now, before = totals_of(self.medium), self._ios_before
        return None if now is None else now.since(before or IoTotals())

    @property
    def store_backlog_s(self) -> float:
        """Predicted seconds until what was stored so far is there, as a throttle lets it."""
        seconds = self.counters.store_fit.predict_s(self.writing_bytes, 0)
        if self.bucket.on:
            held_s = self.bucket.wait_s(self.clock.now_s(), stores=True)
            seconds = max(seconds, held_s + self.writing_bytes / (self.bucket.mb_s * 1e6))
        return seconds

    # ---- opening and closing

    def open(self, medium: Medium, where: Place, cap_bytes: int, page_bytes: int) -> None:
        """Work on a medium from now on; what an earlier process left there is found again.

        `page_bytes`: how much of the cap is for pages.
        """
        self.medium, self.where, self.cap_bytes = medium, where, cap_bytes
        self.table.capacity_bytes = page_bytes
        self.health.reopened()
        self._ios_before = None
        self.calls.open(medium)
        self.io.submit(lambda: self.calls.measure(self.charge, page_bytes), self._measured)
        if medium.persistent:
            self._scanning = True
            self.io.submit(self.calls.scan, self._scanned)
        self.io.wait_idle(SCAN_WAIT_S if medium.shared else None)
        self.io.drain()

    def close(self) -> None:
        """Forget all entries and let the medium go; the caller has let all transfers end."""
        self._end_outage()
        for entry in self.table.all_entries():
            entry.forgotten = True  # the medium deletes its pages when it closes, or keeps them
            self.table.remove(entry)
        for entry in self.table.doomed.values():
            entry.forgotten = True
        self.answers.forget()
        self.table.capacity_bytes = 0
        medium, where, self.medium = self.medium, self.where, None
        if medium is not None:
            keep = where is not None and where.keep
            self.io.submit(lambda: self.calls.close(keep), nothing)
            self.io.wait_idle(None)
            self.io.drain()
            self.edge.forget()

    def adjust(self, change: Callable[[Medium], None]) -> None:
        """Change something of the medium in the tier's thread, after what is queued."""
        medium = self.medium
        if medium is not None:

            def run() -> Outcome:
                change(medium)
                return Outcome()

            self.io.submit(run, nothing)

    def hold(self, keys: Sequence[TierKey], hold_s: float = HOLD_S) -> None:
        """Ask a medium that can to keep these pages from others' puts for so long."""
        medium = self.medium
        if keys and self.readable and isinstance(medium, HoldingMedium):
            encoded = [encode_key(key) for key in keys]

            def run() -> Outcome:
                medium.prestage(encoded, hold_s)
                return Outcome()

            self.io.submit(run, nothing, load=True)

    def resize(self, cap_bytes: int) -> bool:
        """Give the medium a new cap, after what is queued; False if it cannot have it."""
        self._end_outage()
        self.io.submit(lambda: self.calls.resize(cap_bytes), nothing)
        self.io.wait_idle(None)
        if self.calls.fits:
            self.cap_bytes = cap_bytes
        return self.calls.fits

    def _end_outage(self) -> None:
        with contextlib.suppress(TierError):  # then what is asked of the medium tells
            restore(self)

    # ---- traffic

    def write(self, entry: Entry, page: np.ndarray, then: Callable[[Outcome], None]) -> None:
        """Write an indexed entry's page in the background; `page` stays unchanged until then."""
        key = encode_key(entry.key)
        self.answers.written(key)
        self.writing_bytes += entry.page_bytes

        def written(outcome: Outcome) -> None:
            self.writing_bytes -= entry.page_bytes
            then(outcome)

        learn = self._learning(self.counters.store_fit, written)
        self.io.queue(Op(PUT, key, Page(entry, page)), learn, entry.page_bytes)

    def read(self, entry: Entry, page: np.ndarray, then: Callable[[Outcome], None]) -> None:
        """Read and verify an entry's page in the background."""
        learn = self._learning(self.counters.load_fit, then)
        self.io.queue(Op(GET, encode_key(entry.key), Page(entry, page)), learn, entry.page_bytes)

    def leave(self, entry: Entry) -> None:
        """Delete a page right after the read that was queued before; its room is free for others.

        The entry has to be pinned by that read.
        """
        self.table.leave(entry)
        self.counters.num_evictions += 1
        if not self.evicts_itself:
            self._remove(entry)

    def adopt(self, record: PageRecord, real_bytes: int = 0) -> Entry | None:
        """Index a page that lies on the medium already; None where it cannot be of use."""
        if is_private(record.key) or self.medium is None or not self.edge.readable(record):
            return None
        key = record.key[1:]
        charge = real_bytes or self.medium.charge_bytes(record)
        victims = self.table.victims(charge)
        if self.table.get(key) is not None or victims is None:
            return None
        for victim in victims:
            self.forget(victim)
        entry = Entry(
            key,
            record.page_bytes,
            charge,
            record.checksums,
            self._next_generation(),
            State.READY,
            record=record,
        )
        self.table.add(entry)
        return entry

    def forget(self, entry: Entry) -> None:
        """Evict an entry; a medium that keeps its own cap keeps the page as long as it likes."""
        entry.forgotten = self.evicts_itself
        self.table.remove(entry)
        self.counters.num_evictions += 1

    def promoted(self, entry: Entry) -> None:
        """Exclusive tiers: DRAM has the page now; what others may ask for stays."""
        if not self.shared:
            self.table.remove(entry)

    # ---- outcomes

    def _learning(
        self, fit: TransferFit, then: Callable[[Outcome], None]
    ) -> Callable[[Outcome], None]:
        """`then`, after the fit has seen the batch as one transfer: its latency counts once."""

        def learned(outcome: Outcome) -> None:
            fit.observe(*outcome.batch)
            then(outcome)

        return learned

    def _measured(self, outcome: Outcome) -> None:
        if outcome.reason:
            self.health.fault(outcome.reason)
        self.counters.probe = self.calls.measured
        self._ios_before = totals_of(self.medium)
        for page_bytes, store_s, load_s in self.calls.measured.transfers:
            self.counters.store_fit.observe(page_bytes, store_s)
            self.counters.load_fit.observe(page_bytes, load_s)

    def _scanned(self, outcome: Outcome) -> None:
        self._scanning = False
        if outcome.reason:
            self.health.fault(outcome.reason)
        keep = self.where is not None and self.where.keep
        for record, real_bytes in self.calls.found:
            entry = self.adopt(record, real_bytes) if keep else None
            if entry is None and not self.shared:
                self.io.queue(Op(REMOVE, record.key, (record.key, 0)), nothing)
        self.calls.found.clear()

    def _release(self, entry: Entry) -> None:
        if not (entry.leaving or entry.forgotten) and self.on:
            self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        key = encode_key(entry.key)
        self.io.queue(Op(REMOVE, key, (key, entry.generation)), nothing)
