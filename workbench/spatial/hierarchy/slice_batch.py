"""Pages that a tier's thread reads slice by slice, prepared once.

Nothing is verified here: hashing would hold the interpreter, which whoever computes meanwhile
needs. The engine's thread verifies each slice when it takes it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from workbench.clock import Clock
from workbench.spatial.hierarchy.codec_edge import CodecEdge
from workbench.spatial.hierarchy.entries import Entry
from workbench.spatial.hierarchy.io_thread import IoThread, Outcome
from workbench.spatial.hierarchy.medium import (
    Get,
    Medium,
    MediumFault,
    PageRecord,
    SlicedMedium,
    SliceReader,
)
from workbench.spatial.hierarchy.medium_calls import MediumCalls


@dataclass(frozen=True, slots=True)
class SliceOutcome:
    """How one slice of a batch ended: the fault's word of each page that failed, and its time."""

    failed: dict[int, str]
    start_s: float = 0.0
    seconds: float = 0.0


@dataclass
class SliceBatch:
    """Pages of equal slices, none packed by a codec, with where they are read to.

    Made by the engine's thread, read by the tier's: Python is kept out of the way of who computes
    meanwhile, so all that can be known before the first slice is worked out once.
    """

    pages: list[tuple[Entry, np.ndarray]]
    edge: CodecEdge
    clock: Clock
    _records: list[PageRecord] = field(default_factory=list)
    _reader: SliceReader | None = None

    @property
    def slice_bytes(self) -> int:
        """Bytes of one slice of one page."""
        entry = self.pages[0][0]
        return entry.page_bytes // len(entry.checksums)

    def read(self, medium: Medium, number: int) -> SliceOutcome:
        """Read one slice of every page; the first call prepares all."""
        start_s = self.clock.now_s()
        if not self._records:
            self._records = [entry.record or self.edge.record(entry) for entry, _ in self.pages]
            outs = [out for _, out in self.pages]
            if isinstance(medium, SlicedMedium):
                self._reader = medium.slices(self._records, outs)
        failed = self._reader(number) if self._reader is not None else self._get(medium, number)
        return SliceOutcome(failed, start_s, self.clock.now_s() - start_s)

    def _get(self, medium: Medium, number: int) -> dict[int, str]:
        """One range a page, where the medium knows nothing better."""
        size = self.slice_bytes
        gets = [
            Get(record, number * size, out[number * size : (number + 1) * size])
            for record, (_, out) in zip(self._records, self.pages, strict=True)
        ]
        try:
            dones = medium.get(gets)
        except MediumFault as error:
            return dict.fromkeys(range(len(gets)), error.reason)
        return {at: done.reason for at, done in enumerate(dones) if done.reason}


class SliceReads:
    """A tier's reads slice by slice: queued by the engine's thread, run by the tier's."""

    def __init__(self, io: IoThread, calls: MediumCalls) -> None:
        self._io, self._calls = io, calls

    def possible(self, entry: Entry, num_slices: int) -> bool:
        """Whether an entry's page can be read so: no codec has packed it."""
        record, edge = entry.record, self._calls.edge
        plain = not record.codec if record is not None else edge.codec is None
        return plain and len(entry.checksums) == num_slices

    def read(
        self,
        pages: list[tuple[Entry, np.ndarray]],
        num_slices: int,
        then: Callable[[int, SliceOutcome], None],
    ) -> None:
        """Read pages in the background, one slice of all after another; nothing is verified."""
        batch = SliceBatch(pages, self._calls.edge, self._calls.clock)
        for number in range(num_slices):
            self._read(batch, number, then)

    def _read(
        self, batch: SliceBatch, number: int, then: Callable[[int, SliceOutcome], None]
    ) -> None:
        found: list[SliceOutcome] = []

        def run() -> Outcome:
            found.append(batch.read(self._calls.medium, number))
            return Outcome()

        def ended(outcome: Outcome) -> None:  # without a result where the medium went away
            lost = SliceOutcome(dict.fromkeys(range(len(batch.pages)), outcome.reason))
            then(number, found[0] if found else lost)

        self._io.submit(run, ended, len(batch.pages) * batch.slice_bytes, load=True)
