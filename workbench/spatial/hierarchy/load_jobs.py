"""Loads in flight: pins the sources first, then reserves destinations, then reads.

Pinning before reserving matters: making room for one page of a job must not evict another of the
same job (the field's write-back faults began there).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.cache.keys import TierKey
from workbench.cache.tier import LoadResult
from workbench.errors import IntegrityError
from workbench.spatial.hierarchy.entries import Entry, State, slice_checksums
from workbench.spatial.hierarchy.io_thread import Outcome
from workbench.spatial.hierarchy.mover import G2, Mover
from workbench.spatial.hierarchy.slow_tier import SlowTier


@dataclass(eq=False, slots=True)
class _Slot:
    """One key of a job: `entry` in DRAM (pinned by the job), or a `staged` buffer, or neither."""

    key: TierKey
    tier: str = ""
    entry: Entry | None = None
    source: Entry | None = None  # in a slow tier, pinned until its read has ended
    below: SlowTier | None = None  # which
    staged: np.ndarray | None = None
    staged_state: State = State.FAILED
    abandoned: bool = False

    @property
    def waiting(self) -> bool:
        state = self.entry.state if self.entry is not None else self.staged_state
        return state is State.WRITING


@dataclass(eq=False, slots=True)
class _Job:
    job_id: int
    slots: list[_Slot]
    start_s: float
    ready_at_s: float
    delivered: bool = False
    keys: tuple[TierKey, ...] = field(default=())


class LoadJobs:
    """Starts, delivers, completes and cancels loads; the engine's thread only."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._jobs: dict[int, _Job] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, keys: Sequence[TierKey]) -> int:
        """Pin the keys, start reading what lies below DRAM, and return the job's id."""
        mover = self._mover
        now_s = mover.clock.now_s()
        slots = [_Slot(key) for key in keys]
        for slot in reversed(slots):  # last page first, so that a prefix outlives its tail
            self._pin_source(slot)
        for slot in slots:
            if slot.source is not None and slot.below is not None:
                self._start_read(slot, slot.source, slot.below)
        g2_bytes = sum(slot.entry.page_bytes for slot in slots if slot.tier == G2 and slot.entry)
        ready_at_s = mover.dram_bucket.reserve(g2_bytes, now_s) if g2_bytes else now_s
        job = _Job(self._next_id, slots, now_s, ready_at_s, keys=tuple(keys))
        self._jobs[job.job_id] = job
        self._next_id += 1
        return job.job_id

    def deliver(self) -> list[LoadResult]:
        """Results of the jobs whose pages are all there, each page verified just now."""
        now_s = self._mover.clock.now_s()
        results = []
        for job in self._jobs.values():
            if job.delivered or now_s < job.ready_at_s:
                continue
            if any(slot.waiting for slot in job.slots):
                continue
            job.delivered = True
            results.append(self._result(job))
        return results

    def finish(self, job_id: int) -> None:
        """Release what a job holds; in-flight reads release theirs when they end."""
        if not 0 < job_id < self._next_id:
            raise IntegrityError(f"load job {job_id} was never submitted: pass submit_load's id")
        job = self._jobs.pop(job_id, None)
        for slot in job.slots if job is not None else ():
            if slot.entry is not None:
                self._mover.dram.unpin(slot.entry)
            if slot.staged is not None:
                if slot.staged_state is State.WRITING:
                    slot.abandoned = True
                else:
                    self._mover.staging.give(slot.staged)

    def finish_all(self) -> None:
        """Release every job."""
        for job_id in list(self._jobs):
            self.finish(job_id)

    def _pin_source(self, slot: _Slot) -> None:
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

    def _start_read(self, slot: _Slot, source: Entry, below: SlowTier) -> None:
        mover = self._mover
        twin = mover.dram.get(slot.key)
        if twin is None:
            twin = mover.new_dram_entry(
                slot.key, source.page_bytes, source.checksums, source.coded, source.facts
            )
        else:  # the same key twice in one job: one read serves both
            mover.dram.pin(twin)
            slot.entry = twin
            below.table.unpin(source)
            return
        if twin is not None:
            mover.dram.pin(twin)  # by the read
            mover.dram.pin(twin)  # by the job
            slot.entry = twin
            buffer = twin.buffer
        else:
            buffer = slot.staged = mover.staging.take(source.page_bytes)
            slot.staged_state = State.WRITING
        if buffer is None:
            slot.staged_state = State.FAILED
            mover.fault(below.name, "no_room", source)
            below.table.unpin(source)
            return
        self._read(slot, source, twin, buffer, below)

    def _read(
        self, slot: _Slot, source: Entry, twin: Entry | None, buffer: np.ndarray, below: SlowTier
    ) -> None:
        mover = self._mover

        def finish(outcome: Outcome) -> None:
            state = State.FAILED if outcome.reason else State.READY
            if twin is not None:
                twin.state = state
                twin.checksums = source.checksums
                if outcome.reason:
                    mover.dram.remove(twin)
                else:
                    mover.publish(G2, twin)
                mover.dram.unpin(twin)
            else:
                slot.staged_state = state
                if slot.abandoned:
                    mover.staging.give(buffer)

        def then(outcome: Outcome) -> None:
            if outcome.record is not None:  # as another engine put it
                source.record, source.checksums = outcome.record, outcome.record.checksums
            if outcome.reason:
                mover.fault(below.name, outcome.reason, source)
                below.table.remove(source)
            else:
                below.loaded(source.page_bytes, outcome.seconds)
                if twin is not None and mover.settings.inclusive == "exclusive":
                    below.promoted(source)
            below.table.unpin(source)
            ready_at_s = below.bucket.reserve(source.page_bytes, outcome.start_s)
            mover.held.hold(below.name, ready_at_s, lambda: finish(outcome))

        below.read(source, buffer, then)

    def _result(self, job: _Job) -> LoadResult:
        mover = self._mover
        pages = tuple(self._verified(slot) for slot in job.slots)
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
        return LoadResult(job.job_id, job.keys, pages, tiers, seconds)

    def _verified(self, slot: _Slot) -> np.ndarray | None:
        mover, entry = self._mover, slot.entry
        if entry is None:
            return slot.staged if slot.staged_state is State.READY else None
        if entry.state is not State.READY or entry.buffer is None:
            return None
        start_s = mover.clock.now_s()
        if slice_checksums(entry.buffer, len(entry.checksums)) != entry.checksums:
            mover.fault(G2, "corrupt", entry)
            mover.dram.remove(entry)
            return None
        if slot.tier == G2:
            mover.counters[G2].loaded(entry.page_bytes, mover.clock.now_s() - start_s)
        return entry.buffer
