"""Reads of pages from slow tiers into DRAM or staging, whole or slice by slice.

whole       | page 0 | page 1 | page 2 |
by slices   | 0.0 1.0 2.0 | 0.1 1.1 2.1 | ...        page.slice: the first slices come first
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from workbench.cache.tier import SliceSpan
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.flows import HBM
from workbench.spatial.hierarchy.io_thread import Outcome
from workbench.spatial.hierarchy.mover import G2, Mover
from workbench.spatial.hierarchy.paced_link import Load
from workbench.spatial.hierarchy.slice_batch import SliceOutcome
from workbench.spatial.hierarchy.slow_tier import SlowTier

WAIT_S = 1.0  # between looks at a read that has to end
OnSpan = Callable[[SliceSpan], None]


@dataclass(eq=False, slots=True)
class PageRead:
    """One page on its way up: into `twin`, its entry in DRAM, or else a buffer of staging.

    With `direct` the buffer is the page's place in HBM. `source` and `twin` are pinned until it has
    `ended`.
    """

    source: Entry
    below: SlowTier
    twin: Entry | None
    buffer: np.ndarray
    direct: bool = False
    ended: bool = False
    state: State = State.WRITING
    reason: str = ""
    seconds: float = 0.0
    progress: "Progress | None" = None  # where it comes by slices
    abandoned: bool = False

    def arrived(self, num_slices: int) -> bool:
        """Whether so many leading slices are there, or never will be."""
        if self.state is not State.WRITING or self.reason:
            return True
        return self.progress is not None and self.progress.num_slices >= num_slices


@dataclass(slots=True)
class Progress:
    """How far pages that come by slices together have come."""

    num_slices: int = 0
    seconds: float = 0.0


class PageReads:
    """Starts reads and lets their ends take effect; the engine's thread only."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    def start(
        self, reads: Sequence[PageRead], num_slices: int, load: Load, on_span: OnSpan
    ) -> None:
        """Read pages in the background, by so many slices where that is more than one.

        `load`: who shares a throttled link. `on_span` hears of each slice of a tier's pages. Pages
        of other slices are read whole.
        """
        by_tier: dict[str, list[PageRead]] = defaultdict(list)
        for read in reads:
            if num_slices > 1 and read.below.slices.possible(read.source, num_slices):
                by_tier[read.below.name].append(read)
            else:
                self._whole(read, load)
        for batch in by_tier.values():
            self._slices(batch, num_slices, load, on_span)

    def leave(self, read: PageRead) -> None:
        """Nobody waits for a read any more: a buffer of staging goes back once it has ended.

        Into HBM it has to end now, before its place there is given to somebody else.
        """
        while read.direct and not read.ended:
            read.below.io.wait_done(WAIT_S)
            read.below.io.drain()
        if read.twin is not None or read.direct:
            return
        if read.state is State.WRITING:
            read.abandoned = True
        else:
            self._mover.staging.give(read.buffer)

    def spoiled(self, read: PageRead) -> None:
        """A slice of it is not what was stored: its page is gone from its tier, and from DRAM."""
        read.reason = read.reason or "corrupt"
        if read.ended:
            self._mover.fault(read.below.name, read.reason, read.source)
            read.below.table.remove(read.source)
        if read.twin is not None and not read.twin.removed:
            self._mover.dram.remove(read.twin)

    def _whole(self, read: PageRead, load: Load) -> None:
        def then(outcome: Outcome) -> None:
            if outcome.record is not None:  # as another engine put it
                read.source.record = outcome.record
                read.source.checksums = outcome.record.checksums
            read.reason, read.seconds = outcome.reason, outcome.seconds
            self._ended(read)
            link, num_bytes = read.below.bucket, read.source.page_bytes
            link.pace(num_bytes, outcome.start_s, lambda: self._landed(read), load)

        read.below.read(read.source, read.buffer, then)

    def _slices(self, batch: list[PageRead], num_slices: int, load: Load, on_span: OnSpan) -> None:
        below, progress = batch[0].below, Progress()
        for read in batch:
            read.progress = progress
        num_bytes = sum(read.source.page_bytes for read in batch) // num_slices

        def arrive(number: int, start_s: float, end_s: float) -> None:
            paced_s = max(end_s, below.bucket.ended_s) if below.bucket.on else end_s
            on_span(SliceSpan(below.name, number, start_s, paced_s))
            progress.num_slices += 1
            if progress.num_slices == num_slices:
                for read in batch:
                    self._landed(read)

        def then(number: int, outcome: SliceOutcome) -> None:
            for at, reason in outcome.failed.items():
                batch[at].reason = batch[at].reason or reason
            progress.seconds += outcome.seconds
            if number + 1 == num_slices:
                for read in batch:
                    read.seconds = progress.seconds / len(batch)
                    self._ended(read)
            start_s, end_s = outcome.start_s, outcome.start_s + outcome.seconds
            arrived = partial(arrive, number, start_s, end_s)
            below.bucket.pace(num_bytes, start_s, arrived, load)

        below.slices.read([(read.source, read.buffer) for read in batch], num_slices, then)

    def _ended(self, read: PageRead) -> None:
        """The medium is done with a page."""
        mover, source, below = self._mover, read.source, read.below
        read.ended = True
        if read.reason:
            mover.fault(below.name, read.reason, source)
            below.table.remove(source)
        else:
            below.health.loaded(source.page_bytes, read.seconds)
            # Through staging too: it is a way to HBM, and nobody finds a page there.
            mover.flows.moved(below.name, HBM if read.twin is None else G2, source.page_bytes)
            if read.twin is not None and mover.settings.inclusive == "exclusive":
                below.promoted(source)
        below.table.unpin(source)

    def _landed(self, read: PageRead) -> None:
        """A page may be read, as its throttle lets it; or it failed."""
        mover, twin = self._mover, read.twin
        read.state = State.FAILED if read.reason else State.READY
        if twin is None:
            if read.abandoned and not read.direct:
                mover.staging.give(read.buffer)
            return
        twin.state, twin.checksums = read.state, read.source.checksums
        if read.reason:
            mover.dram.remove(twin)
        else:
            mover.publish(G2, twin)
        mover.dram.unpin(twin)
