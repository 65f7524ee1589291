"""Loads that are taken slice by slice: begun late, each slice verified when its layers need it."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import xxhash

from workbench.cache.keys import TierKey
from workbench.cache.tier import SliceSpan
from workbench.spatial.hierarchy.entries import State
from workbench.spatial.hierarchy.load_jobs import LoadJobs
from workbench.spatial.hierarchy.load_slots import Job, Slot
from workbench.spatial.hierarchy.mover import Mover

POLL_S = 0.0005  # at most, between looks at what a throttle holds back


class SliceLoads:
    """Implements `LoadsBySlices` over the jobs in flight; the engine's thread only."""

    def __init__(self, mover: Mover, jobs: LoadJobs) -> None:
        self._mover, self._jobs = mover, jobs

    def possible(self, keys: Sequence[TierKey], num_slices: int) -> bool:
        """Whether all keys lie where they can be loaded by so many slices."""
        mover = self._mover
        for key in keys:
            entry = mover.dram.get(key)
            if entry is not None:
                if entry.state is not State.READY or len(entry.checksums) != num_slices:
                    return False
                continue
            found = mover.ladder.source(key)
            if found is None or not found[0].slices.possible(found[1], num_slices):
                return False
        return True

    def begin(self, job_id: int, into: Sequence[np.ndarray] | None = None) -> None:
        """Start a job: slice by slice, the first slices of all pages first, or else as a whole.

        `into`: each page's place in HBM, where what lies on a disk of ours goes at once; an empty
        sequence where it goes through DRAM.
        """
        self._jobs.begin(job_id, into)

    def wait(self, job_id: int, num_slices: int, timeout_s: float) -> bool:
        """Block until so many leading slices of a job's pages are there, or never will be.

        False where the time was up first.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            self._mover.advance()
            if self._jobs.arrived(self._jobs.job(job_id), num_slices):
                return True
            if time.monotonic() > until_s:
                return False
            self._mover.ladder.wait_done(POLL_S)

    def copy(self, job_id: int, number: int, write: Callable[[int, np.ndarray], None]) -> bool:
        """Verify one slice of every page; what is not in its place goes to `write(page, bytes)`.

        False where one is missing or damaged, which is counted; it ends there.
        """
        job, mover = self._jobs.job(job_id), self._mover
        start_s, digest = mover.clock.now_s(), xxhash.xxh3_64_intdigest
        job.sources = job.sources or [slot.source_of_slices(job.num_slices) for slot in job.slots]
        for page, (slot, source) in enumerate(zip(job.slots, job.sources, strict=True)):
            if source is None or slot.failed:
                return False
            buffer, view, checksums = source
            size = len(view) // job.num_slices
            begin, end = number * size, (number + 1) * size
            if digest(view[begin:end]) != checksums[number]:
                self._spoiled(slot)
                return False
            if slot.read is None or not slot.read.direct:
                write(page, buffer[begin:end])
        job.verify_s += mover.clock.now_s() - start_s
        if number == job.num_slices - 1:
            self._count_hits(job)
        return True

    def progress(self, job_id: int) -> tuple[tuple[str, ...], list[SliceSpan]]:
        """The tier of each page of a job, and when which slices moved so far."""
        job = self._jobs.job(job_id)
        return tuple(slot.tier for slot in job.slots), job.spans

    def _count_hits(self, job: Job) -> None:
        """What was in DRAM or came through it, each page for its share of the time."""
        for entry in [slot.entry for slot in job.slots if slot.entry is not None]:
            self._jobs.left_dram(entry, job.verify_s / len(job.slots))

    def _spoiled(self, slot: Slot) -> None:
        """A slice that has arrived is not what was stored."""
        if slot.read is not None:
            self._jobs.reads.spoiled(slot.read)
        elif slot.entry is not None:
            self._jobs.corrupt(slot.entry)
