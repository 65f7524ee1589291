"""What a tier's thread does with its medium: encodes, calls, verifies, and survives any fault."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from workbench.cache.codec import CodecFault
from workbench.cache.keys import PrivateKey
from workbench.cache.page_copy import slice_checksums
from workbench.clock import Clock
from workbench.spatial.hierarchy.codec_edge import CodecEdge
from workbench.spatial.hierarchy.cost_probe import PROBE_BYTES, CostProbe, probe_sizes
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.io_thread import GET, PROBE, PUT, REMOVE, Op, Outcome
from workbench.spatial.hierarchy.medium import Done, Get, Medium, MediumFault, PageRecord, Put

NO_ROOM = ("over_cap", "full")  # words of media, for what is the end of a probe and no fault
OTHER_BYTES = ("corrupt", "truncated", "foreign", "other_version")  # than the record has


@dataclass(frozen=True, slots=True)
class Page:
    """An entry and the host buffer its page is written from or read into; `plain`: no codec."""

    entry: Entry
    buffer: np.ndarray
    plain: bool = False


@dataclass
class MediumCalls:
    """Batches of operations on one medium; the tier's thread only.

    Generations guard late removals: a page put again under its key outlives the removal of the
    older one. `measured`: what its probe took; `found`: what a scan brought.
    """

    edge: CodecEdge
    clock: Clock
    measured: CostProbe = field(default_factory=CostProbe)
    found: list[tuple[PageRecord, int]] = field(default_factory=list)
    fits: bool = True
    _medium: Medium | None = None
    _live: dict[bytes, int] = field(default_factory=dict)  # key -> generation that lies there

    @property
    def medium(self) -> Medium:
        """The open medium."""
        if self._medium is None:
            raise MediumFault("closed")
        return self._medium

    def open(self, medium: Medium) -> None:
        """Work on a medium from now on (the thread is idle)."""
        self._medium = medium
        self._live.clear()

    def close(self, keep: bool) -> Outcome:
        """Let the medium go."""
        medium, self._medium = self.medium, None
        self._live.clear()
        medium.close(keep)
        return Outcome()

    def resize(self, capacity_bytes: int) -> Outcome:
        """Give the medium a new cap; `fits` says whether it has it."""
        self.fits = False
        self.fits = self.medium.resize(capacity_bytes)
        return Outcome()

    def scan(self) -> Outcome:
        """Find what an earlier process left."""
        try:
            self.found = list(self.medium.scan())
        except MediumFault as error:
            return Outcome(error.reason)
        return Outcome()

    def perform(self, ops: list[Op]) -> list[Outcome]:
        """Outcomes of a batch, in its order; removals go before puts."""
        outcomes: dict[int, Outcome] = {}
        work: dict[str, Callable[[list[Any]], list[Outcome]]] = {
            REMOVE: self._remove, PUT: self.put, GET: self.get, PROBE: self._probe,
        }  # fmt: skip
        for kind, run in work.items():
            chosen = [at for at, op in enumerate(ops) if op.kind == kind]
            if chosen:
                results = run([ops[at].item for at in chosen])
                outcomes.update(zip(chosen, results, strict=True))
        return [outcomes[at] for at in range(len(ops))]

    def put(self, pages: list[Page]) -> list[Outcome]:
        """Encode and write pages."""
        start_s = self.clock.now_s()
        puts, reasons = [], [""] * len(pages)
        for at, page in enumerate(pages):
            try:
                puts.append((at, self._encoded(page)))
            except CodecFault as error:
                reasons[at] = error.reason
        again = [put.record.key for _, put in puts if put.record.key in self._live]
        if again and not self.medium.shared:
            self.medium.remove(again)
        dones = _safely(lambda: self.medium.put([put for _, put in puts]), len(puts))
        written: dict[int, tuple[Put, Done]] = {}
        for (at, put), done in zip(puts, dones, strict=True):
            reasons[at] = done.reason
            if not done.reason:
                self._live[put.record.key] = pages[at].entry.generation
                written[at] = put, done
        outcomes = [
            Outcome(reason, start_s, share)
            if reason
            else Outcome("", start_s, share, written[at][1].real_bytes, written[at][0].record)
            for at, (reason, share) in enumerate(
                zip(reasons, self._shares(start_s, pages), strict=True)
            )
        ]
        return _told(outcomes, pages)

    def _encoded(self, page: Page) -> Put:
        if page.plain:
            return Put(self.edge.record(page.entry), page.buffer)
        return self.edge.encode(page.entry, page.buffer)

    def get(self, pages: list[Page]) -> list[Outcome]:
        """Read, decode and verify pages."""
        start_s = self.clock.now_s()
        records = [page.entry.record or self.edge.record(page.entry) for page in pages]
        results = self._read(records, [page.buffer for page in pages])
        if self.medium.shared:
            results = [
                result
                if result[0] not in OTHER_BYTES
                else self._read_anew(result[0], record, page.buffer)
                for result, record, page in zip(results, records, pages, strict=True)
            ]
        shares = self._shares(start_s, pages)
        outcomes = [
            Outcome(reason, start_s, share, record=record)
            for (reason, record), share in zip(results, shares, strict=True)
        ]
        return _told(outcomes, pages)

    def _read(
        self, records: list[PageRecord], buffers: list[np.ndarray]
    ) -> list[tuple[str, PageRecord | None]]:
        """Read, decode and verify pages; the reason of each that failed."""
        gets = [
            Get(record, 0, np.empty(record.payload_bytes, np.uint8) if record.codec else buffer)
            for record, buffer in zip(records, buffers, strict=True)
        ]
        results: list[tuple[str, PageRecord | None]] = []
        dones = _safely(lambda: self.medium.get(gets), len(gets))
        for done, get, buffer in zip(dones, gets, buffers, strict=True):
            reason = done.reason
            if not reason:
                try:
                    self.edge.decode(get.record, get.out, buffer)
                except (MediumFault, CodecFault) as error:
                    reason = error.reason
            results.append((reason, None))
        return results

    def _read_anew(
        self, reason: str, record: PageRecord, buffer: np.ndarray
    ) -> tuple[str, PageRecord | None]:
        """On a shared medium another engine may have put the page of this key in its own way."""
        try:
            found = self.medium.probe([record.key])[0]
        except MediumFault:
            found = None
        if found is None or found == record or found.page_bytes != record.page_bytes:
            return reason, None
        return self._read([found], [buffer])[0][0], found

    def _remove(self, items: list[tuple[bytes, int]]) -> list[Outcome]:
        keys = [key for key, generation in items if self._live.get(key, generation) == generation]
        for key in keys:
            self._live.pop(key, None)
        if keys:
            _safely(lambda: self.medium.remove(keys), len(keys))
        return [Outcome()] * len(items)

    def _probe(self, keys: list[bytes]) -> list[Outcome]:
        try:
            return [Outcome(record=record) for record in self.medium.probe(keys)]
        except MediumFault as error:
            return [Outcome(error.reason)] * len(keys)

    def _shares(self, start_s: float, pages: Sequence[Page]) -> list[float]:
        """Seconds of a batch, by bytes: pages that move together have one time."""
        total_s = self.clock.now_s() - start_s
        total = sum(page.entry.page_bytes for page in pages)
        return [total_s * page.entry.page_bytes / total for page in pages]

    def measure(self, charge: Callable[[int, int], int], capacity_bytes: int) -> Outcome:
        """Real puts and gets of several sizes, for what is predicted of the first transfers.

        A medium without room for a size is asked for no larger one, which is no fault.
        """
        name, number, reason = f"speed {os.urandom(8).hex()}", count(), ""
        fits = [size for size in PROBE_BYTES if charge(size, 1) <= capacity_bytes]

        def move(size: int) -> tuple[float, float] | None:
            nonlocal reason
            reason, seconds = self._move(PrivateKey(name, 0, 0, next(number)), size)
            return seconds

        self.measured = probe_sizes(fits, move, self.clock)
        return Outcome("" if reason in NO_ROOM else reason)

    def _move(self, key: PrivateKey, size: int) -> tuple[str, tuple[float, float] | None]:
        """Put, get and remove a page; the reason of a fault, or the seconds to put and to get."""
        buffer = np.ones(size, np.uint8)
        entry = Entry(key, size, 0, slice_checksums(buffer, 1), 0, State.WRITING)
        page = Page(entry, buffer, plain=True)
        put = self.put([page])[0]
        if put.reason or put.record is None:
            return put.reason, None
        page.entry.record = put.record
        got = self.get([page])[0]
        self._remove([(put.record.key, 0)])
        return got.reason, None if got.reason else (put.seconds, got.seconds)


def _told(outcomes: list[Outcome], pages: Sequence[Page]) -> list[Outcome]:
    """Outcomes of a batch, whose bytes and seconds the first tells if all went well."""
    if all(not outcome.reason for outcome in outcomes):
        num_bytes = sum(page.entry.page_bytes for page in pages)
        seconds = sum(outcome.seconds for outcome in outcomes)
        outcomes[0] = replace(outcomes[0], batch=(num_bytes, seconds))
    return outcomes


def _safely(run: Callable[[], Sequence[Done]], num: int) -> list[Done]:
    """What a medium answers; whatever it raises is the reason of each operation."""
    try:
        dones = list(run())
    except MediumFault as error:
        return [Done(error.reason)] * num
    except Exception as error:  # a medium's fault is a counted miss, never the end of the thread
        return [Done(f"internal error: {error!r}")] * num
    return dones if len(dones) == num else [Done("internal error: answers are missing")] * num
