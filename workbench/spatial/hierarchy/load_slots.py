"""What a load in flight holds: keys, where each is read from and to, and how far it has come."""

from dataclasses import dataclass, field

import numpy as np

from workbench.cache.keys import TierKey
from workbench.cache.tier import SliceSpan
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.paced_link import Load
from workbench.spatial.hierarchy.page_reads import PageRead
from workbench.spatial.hierarchy.slow_tier import SlowTier

Source = tuple[np.ndarray, memoryview, tuple[int, ...]]  # a page twice, and its checksums


@dataclass(eq=False, slots=True)
class Slot:
    """One key of a job: `entry` in DRAM (pinned by the job), or a `staged` buffer, or neither."""

    key: TierKey
    tier: str = ""
    entry: Entry | None = None
    source: Entry | None = None  # in a slow tier, pinned until its read has ended
    below: SlowTier | None = None  # which
    read: PageRead | None = None

    @property
    def staged(self) -> np.ndarray | None:
        """The buffer of a page that found no room in DRAM."""
        read = self.read
        return read.buffer if read is not None and read.twin is None and not read.direct else None

    @property
    def state(self) -> State:
        """Whether the page can be read: of the entry in DRAM, else of the buffer."""
        if self.entry is not None:
            return self.entry.state
        return self.read.state if self.read is not None else State.FAILED

    @property
    def failed(self) -> bool:
        """Whether the page will not be there as a whole."""
        return self.read.reason != "" if self.read is not None else self.state is State.FAILED

    def source_of_slices(self, num_slices: int) -> Source | None:
        """Where slices are read from, or None where the page is missing or cut otherwise."""
        buffer = self.entry.buffer if self.entry is not None else None
        checksums = self.entry.checksums if self.entry is not None else ()
        if self.read is not None:
            buffer, checksums = self.read.buffer, self.read.source.checksums
        if buffer is None or len(checksums) != num_slices:
            return None
        return buffer, memoryview(buffer), checksums  # type: ignore[arg-type]

    def arrived(self, num_slices: int) -> bool:
        """Whether so many leading slices are there, or never will be."""
        if self.state is not State.WRITING:
            return True
        return self.read is not None and self.read.arrived(num_slices)


@dataclass(eq=False, slots=True)
class Job:
    """Pages on their way for one request, and what their slices need."""

    job_id: int
    slots: list[Slot]
    start_s: float
    ready_at_s: float  # of what lies in DRAM, as its throttle lets it
    num_slices: int
    begun: bool = False
    delivered: bool = False
    keys: tuple[TierKey, ...] = ()
    spans: list[SliceSpan] = field(default_factory=list)
    sources: list[Source | None] = field(default_factory=list)  # of its slices
    watched: list[Slot] = field(default_factory=list)  # one of those that come together
    verify_s: float = 0.0
    load: Load = Load(0)
    verify: bool = True  # before it is delivered; else by whoever copies its pages
    ahead: bool = False  # nobody takes the pages yet: they stay in DRAM
