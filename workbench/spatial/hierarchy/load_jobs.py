"""Loads in flight: pins the sources first, then reserves destinations, then reads.

Pinning before reserving matters: making room for one page of a job must not evict another of the
same job (the field's write-back faults began there).
"""

import math
from collections.abc import Sequence

import numpy as np

from workbench.cache.keys import TierKey
from workbench.cache.page_copy import slice_checksums
from workbench.cache.tier import LoadResult
from workbench.errors import IntegrityError
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.flows import HBM
from workbench.spatial.hierarchy.ladder import G3
from workbench.spatial.hierarchy.load_slots import Job, Slot
from workbench.spatial.hierarchy.mover import G2, Mover
from workbench.spatial.hierarchy.paced_link import Load
from workbench.spatial.hierarchy.page_reads import PageRead, PageReads


class LoadJobs:
    """Starts, delivers, completes and cancels loads; the engine's thread only."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self.reads = PageReads(mover)
        self._jobs: dict[int, Job] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(
        self,
        keys: Sequence[TierKey],
        num_slices: int = 1,
        compute_s: float = 0.0,
        ahead: bool = False,
        verify: bool = True,
    ) -> int:
        """Pin the keys, start reading what lies below DRAM, and return the job's id.

        `KVHierarchy.submit_load` says what the others mean.
        """
        now_s = self._mover.clock.now_s()
        slots = [Slot(key) for key in keys]
        for slot in reversed(slots):  # last page first, so that a prefix outlives its tail
            self._pin_source(slot)
        job = Job(self._next_id, slots, now_s, now_s, num_slices, keys=tuple(keys))
        num_bytes = sum(slot.source.page_bytes for slot in slots if slot.source is not None)
        hiding = num_bytes / compute_s / 1e6 if compute_s > 0 else math.inf
        job.load, job.ahead, job.verify = Load(job.job_id, hiding), ahead, verify
        self._jobs[job.job_id] = job
        self._next_id += 1
        if num_slices == 1:
            self.begin(job.job_id)
        return job.job_id

    def begin(self, job_id: int, into: Sequence[np.ndarray] | None = None) -> None:
        """Start reading: slice by slice, the first slices of all pages first, or else as a whole.

        `into`: each page's place in HBM, where what lies on a disk of ours goes at once; an empty
        sequence where it goes through DRAM.
        """
        job, mover = self.job(job_id), self._mover
        job.begun, job.num_slices = True, job.num_slices if into is not None else 1
        places: list[np.ndarray | None] = [*(into or ())] or [None] * len(job.slots)
        reads = [
            read
            for slot, place in zip(job.slots, places, strict=True)
            if (read := self._destination(slot, place)) is not None
        ]
        pages = [slot.entry.page_bytes for slot in job.slots if slot.tier == G2 and slot.entry]
        if pages:
            job.ready_at_s = mover.dram_bucket.reserve(sum(pages), job.start_s)
        self.reads.start(reads, job.num_slices, job.load, job.spans.append)
        together: dict[int, Slot] = {}
        for slot in job.slots:
            progress = slot.read.progress if slot.read is not None else None
            together[id(progress or slot)] = slot
        job.watched = list(together.values())

    def deliver(self) -> list[LoadResult]:
        """Results of the jobs whose pages are all there, each page verified just now."""
        results = []
        for job in self._jobs.values():
            if job.delivered or not job.begun or not self.arrived(job, job.num_slices):
                continue
            job.delivered = True
            results.append(self._result(job))
        return results

    def take_arrived(self, job_id: int) -> LoadResult:
        """Deliver a job's leading pages that are there now, and let go of the others.

        Their reads go on, for whoever asks next (HiCache's completed length).
        """
        job = self.job(job_id)
        count = self._num_arrived(job)
        for slot in job.slots[count:]:
            self._let_go(job, slot)
        job.slots, job.keys, job.delivered = job.slots[:count], job.keys[:count], True
        return self._result(job)

    def _num_arrived(self, job: Job) -> int:
        """How many leading pages are ready, and let through by DRAM's throttle, in their order."""
        passed_s, paced_s = self._mover.clock.now_s() - job.start_s, job.ready_at_s - job.start_s
        total = sum(slot.entry.page_bytes for slot in job.slots if slot.tier == G2 and slot.entry)
        taken = 0
        for at, slot in enumerate(job.slots):
            taken += slot.entry.page_bytes if slot.tier == G2 and slot.entry else 0
            if slot.state is not State.READY or taken * paced_s > passed_s * total:
                return at
        return len(job.slots)

    def finish(self, job_id: int) -> None:
        """Release what a job holds; in-flight reads release theirs when they end."""
        if not 0 < job_id < self._next_id:
            raise IntegrityError(f"load job {job_id} was never submitted: pass submit_load's id")
        job = self._jobs.pop(job_id, None)
        if job is not None:
            for slot in job.slots:
                self._let_go(job, slot)

    def _let_go(self, job: Job, slot: Slot) -> None:
        if slot.entry is not None:
            self._mover.dram.unpin(slot.entry)
        if slot.read is not None:
            self.reads.leave(slot.read)
        if not job.begun and slot.source is not None and slot.below:
            slot.below.table.unpin(slot.source)

    def finish_all(self) -> None:
        """Release every job."""
        for job_id in list(self._jobs):
            self.finish(job_id)

    def job(self, job_id: int) -> Job:
        """A job in flight; IntegrityError where there is none of that id."""
        if job_id not in self._jobs:
            raise IntegrityError(f"load job {job_id} is not in flight: pass submit_load's id")
        return self._jobs[job_id]

    def arrived(self, job: Job, num_slices: int) -> bool:
        """Whether so many leading slices of every page are there, or one never will be."""
        paced_s = (job.ready_at_s - job.start_s) * num_slices / job.num_slices
        if self._mover.clock.now_s() < job.start_s + paced_s:
            return False
        return all(slot.arrived(num_slices) for slot in job.watched)

    def _pin_source(self, slot: Slot) -> None:
        mover = self._mover
        entry = mover.dram.get(slot.key)
        if entry is not None:
            mover.dram.touch(entry)
            mover.dram.pin(entry)
            slot.entry, slot.tier = entry, G2
            mover.hit(entry)
        for tier in mover.ladder.tiers:
            source = tier.table.get(slot.key)
            if source is not None and source.state is State.READY:
                tier.table.touch(source)
        found = mover.ladder.source(slot.key) if entry is None else None
        if found is not None:
            slot.below, slot.source = found
            slot.tier = slot.below.name
            slot.below.table.pin(slot.source)
            mover.seen(slot.source)

    def _destination(self, slot: Slot, place: np.ndarray | None) -> PageRead | None:
        """Where a page that lies below DRAM is read to; None where nothing is to be read."""
        mover, source, below = self._mover, slot.source, slot.below
        if source is None or below is None:
            return None
        if place is not None and below.name == G3:
            slot.read = PageRead(source, below, None, place, direct=True)
            return slot.read
        twin = mover.dram.get(slot.key)
        if twin is not None:  # the same key twice in one job: one read serves both
            mover.dram.pin(twin)
            slot.entry = twin
            below.table.unpin(source)
            return None
        twin = mover.new_dram_entry(
            slot.key, source.page_bytes, source.checksums, source.coded, source.facts
        )
        if twin is not None:
            mover.dram.pin(twin)  # by the read
            mover.dram.pin(twin)  # by the job
            slot.entry = twin
        buffer = twin.buffer if twin is not None else mover.staging.take(source.page_bytes)
        if buffer is None:
            mover.fault(below.name, "no_room", source)
            below.table.unpin(source)
            return None
        slot.read = PageRead(source, below, twin, buffer)
        return slot.read

    def _result(self, job: Job) -> LoadResult:
        mover = self._mover
        pages = tuple(self._page(job, slot) for slot in job.slots)
        seconds = mover.clock.now_s() - job.start_s
        tiers = tuple(
            slot.tier if page is not None else ""
            for slot, page in zip(job.slots, pages, strict=True)
        )
        mover.emit(
            "load",
            {
                "job_id": job.job_id,
                "num_pages": len(pages),
                "num_misses": tiers.count(""),
                "num_bytes": sum(page.nbytes for page in pages if page is not None),
                "seconds": seconds,
                "tiers": tiers,
            },
        )
        sums = tuple(slot.entry.checksums if slot.entry is not None else () for slot in job.slots)
        # What lies in staging was verified by its tier.
        return LoadResult(job.job_id, job.keys, pages, tiers, seconds, () if job.verify else sums)

    def copied(self, job_id: int, key: TierKey, seconds: float) -> None:
        """A page of a job was verified and copied by whoever took it."""
        entry = self._slot(job_id, key).entry
        if entry is not None:
            self.left_dram(entry, seconds)

    def spoiled(self, job_id: int, key: TierKey) -> None:
        """Who copied a page of a job found it damaged."""
        entry = self._slot(job_id, key).entry
        if entry is not None:
            self.corrupt(entry)

    def _slot(self, job_id: int, key: TierKey) -> Slot:
        return next(slot for slot in self.job(job_id).slots if slot.key == key)

    def _page(self, job: Job, slot: Slot) -> np.ndarray | None:
        mover, entry = self._mover, slot.entry
        if entry is None:
            return slot.staged if slot.state is State.READY else None
        if entry.state is not State.READY or entry.buffer is None:
            return None
        if not job.verify:
            return entry.buffer
        start_s = mover.clock.now_s()
        if slice_checksums(entry.buffer, len(entry.checksums)) != entry.checksums:
            self.corrupt(entry)
            return None
        if not job.ahead:
            self.left_dram(entry, mover.clock.now_s() - start_s)
        return entry.buffer

    def left_dram(self, entry: Entry, seconds: float) -> None:
        """Count a page that HBM gets out of DRAM, be it there before or come up just now."""
        self._mover.counters[G2].loaded(entry.page_bytes, seconds)
        self._mover.flows.moved(G2, HBM, entry.page_bytes)

    def corrupt(self, entry: Entry) -> None:
        """A page in DRAM is not what was stored: counted, and gone."""
        self._mover.fault(G2, "corrupt", entry)
        self._mover.dram.remove(entry)
