"""All memory below HBM behind one interface: DRAM (G2) and local disk (G3), each optional."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from workbench.cache.codec import Codec, CodedRow
from workbench.cache.keys import PrivateKey, TierKey
from workbench.cache.tier import LoadResult, Lookup
from workbench.clock import Clock
from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy.bandwidth import probe_memory
from workbench.spatial.hierarchy.counters import HierarchyStats, TierStats, tier_stats
from workbench.spatial.hierarchy.entries import EntryTable, State
from workbench.spatial.hierarchy.integrity import check_hierarchy
from workbench.spatial.hierarchy.load_jobs import LoadJobs
from workbench.spatial.hierarchy.mover import G2, G3, Mover, OnEvent
from workbench.spatial.hierarchy.reconfigure import ConfigureReport, reconfigure


class Hierarchy:
    """Tiers below HBM (implements `KVHierarchy`); one thread, the engine's, calls it.

    G2 takes stores and demotes its least recently used pages to G3; a hit in G3 is promoted into
    G2 and keeps its file (not exclusive). With G2 off, G3 works alone through counted staging.
    `page_bytes_hint`: the largest page the engine will store. TierError if a tier cannot open.
    """

    def __init__(
        self,
        settings: TierSettings,
        page_bytes_hint: int,
        clock: Clock,
        on_event: OnEvent,
        make_codec: Callable[[str], Codec | None] = lambda name: None,
    ) -> None:
        self.make_codec = make_codec
        self.page_bytes_hint = page_bytes_hint
        self.settings = TierSettings()
        self.mover = Mover(clock, on_event)
        self.jobs = LoadJobs(self.mover)
        self._epochs: dict[str, int] = {}
        self._closed = False
        counters = self.mover.counters[G2]
        probe_memory(clock, counters.load_fit, counters.store_fit, self.mover.copy_fit)
        try:
            self.configure(settings)
        except BaseException:
            self.close()
            raise

    def begin_step(self, step: int) -> None:
        """What is stored or read from now on is so at this step of the engine."""
        for table in self._tables():
            table.step = step

    def last_step(self, tier: str, key: TierKey) -> int | None:
        """Step at which a key was stored or read last in a tier; None if it is not there."""
        entry = self._table(tier).get(key)
        return None if entry is None else entry.last_step

    def charge(self, tier: str, page_bytes: int, num_slices: int) -> int:
        """Bytes of a tier's budget that a page takes."""
        return page_bytes if tier == G2 else self.mover.disk.charge(page_bytes, num_slices)

    @property
    def codec_numerics(self) -> str:
        """The numerics tag of what disk gives back; empty where that is what it was given."""
        codec = self.mover.disk.codec
        return codec.numerics if codec is not None and self.mover.disk.on else ""

    @property
    def codec_bytes(self) -> int:
        """Memory of what the disk codec's blobs have in common."""
        codec = self.mover.disk.codec
        return codec.shared_bytes if codec is not None else 0

    def lookup(self, key: TierKey) -> Lookup:
        """Whether a key can be loaded; never blocks on I/O."""
        mover = self.mover
        entry = mover.dram.get(key)
        if entry is not None:
            if entry.state is State.WRITING:
                return Lookup.HIT_PENDING
            mover.counters[G2].num_hits += 1
            return Lookup.HIT
        if mover.dram.capacity_bytes:
            mover.counters[G2].num_misses += 1
        entry = mover.disk.table.get(key)
        if entry is None or self._never_fits(entry.page_bytes):
            if mover.disk.on:
                mover.counters[G3].num_misses += 1
            return Lookup.MISS
        if entry.state is State.WRITING:
            return Lookup.HIT_PENDING
        if not self._has_room(entry.page_bytes):
            return Lookup.RETRY
        mover.counters[G3].num_hits += 1
        return Lookup.HIT

    def estimate_load_s(self, keys: Sequence[TierKey]) -> float:
        """Predicted seconds to load these keys from where they lie now, and to copy them up.

        Infinite if a key lies nowhere. Counts what is queued before them and the throttles.
        """
        mover = self.mover
        sizes = {G2: 0, G3: 0}
        counts = {G2: 0, G3: 0}
        for key in keys:
            entry, tier = mover.dram.get(key), G2
            if entry is None:
                entry, tier = mover.disk.table.get(key), G3
            if entry is None:
                return math.inf
            sizes[tier] += entry.page_bytes
            counts[tier] += 1
        now_s = mover.clock.now_s()
        total_s = mover.copy_fit.predict_s(sum(sizes.values()), len(keys))
        for tier in (G2, G3):
            if not counts[tier]:
                continue
            queued = mover.io.backlog_bytes if tier == G3 else 0
            fit, bucket = mover.counters[tier].load_fit, mover.buckets[tier]
            seconds = fit.predict_s(sizes[tier] + queued, counts[tier])
            if bucket.on:
                paced = bucket.wait_s(now_s) + (sizes[tier] + queued) / (bucket.mb_s * 1e6)
                seconds = max(seconds, paced)
            total_s += seconds
        return total_s

    def submit_load(self, keys: Sequence[TierKey]) -> int:
        """Pin the keys and start loading them; returns the job's id."""
        return self.jobs.submit(keys)

    def poll(self) -> list[LoadResult]:
        """Finished loads since the last call; also lets stores and demotions advance."""
        self.mover.advance()
        return self.jobs.deliver()

    def complete_load(self, job_id: int) -> None:
        """Unpin what a finished (or cancelled) job held; its page views are invalid from now."""
        self.jobs.finish(job_id)
        self.mover.trim_dram()

    def cancel_load(self, job_id: int) -> None:
        """Forget a job; its pins are released when its I/O has ended."""
        self.complete_load(job_id)

    def store(
        self, key: TierKey, page: np.ndarray, num_slices: int, coded: CodedRow | None = None
    ) -> bool:
        """Copy a page down; False if no tier took it.

        `page`: uint8 [page_bytes], read before return, cut into `num_slices` checksummed parts.
        `coded`: what a lossy codec may make of it, and under which key.
        A prefix key that is held already is only touched: its bytes cannot differ. A private key
        of an older epoch is refused, one of a newer epoch drops those before it. TierError if the
        page is not a multiple of `num_slices` bytes.
        """
        if num_slices < 1 or page.nbytes == 0 or page.nbytes % num_slices:
            raise TierError(
                f"a page of {page.nbytes} bytes cannot be cut into {num_slices} equal slices: "
                "choose a divisor of the page's size"
            )
        if isinstance(key, PrivateKey):
            if not self._renew_private(key):
                return False
        elif self._touch(key, page.nbytes):
            return True
        flat = np.ascontiguousarray(page).reshape(-1).view(np.uint8)
        return self.mover.store(key, flat, num_slices, coded)

    def drop_private(self, request_id: str) -> None:
        """Forget every private entry of a request."""
        self._epochs.pop(request_id, None)
        for table in self._tables():
            for entry in table.private_entries(request_id):
                table.remove(entry)

    def clear(self) -> None:
        """Forget everything (tiers stay open); loads in flight still deliver what they pinned."""
        self._epochs.clear()
        for table in self._tables():
            for entry in table.all_entries():
                table.remove(entry)

    def configure(self, settings: TierSettings) -> ConfigureReport:
        """Change sizes, path, throttles live; on TierError everything stays as it was."""
        report = reconfigure(self, settings)
        self.settings = settings
        return report

    def entries(self, tier: str) -> list[tuple[TierKey, int, bool, int]]:
        """(key, bytes, pinned, last used) of "G2" or "G3", least recently used first.

        Cached until something changes; `version(tier)` tells whether it did.
        """
        return self._table(tier).rows()

    def version(self, tier: str) -> int:
        """A counter that moves whenever the tier's entries change."""
        return self._table(tier).version

    def stats(self) -> HierarchyStats:
        """Counts of all tiers and of the host memory they share."""
        mover = self.mover
        return HierarchyStats(
            tiers=(self._stats(G2, mover.dram), self._stats(G3, mover.disk.table)),
            staging_used_bytes=mover.staging.used_bytes,
            staging_capacity_bytes=mover.staging.capacity_bytes,
            host_spare_bytes=mover.memory.spare_bytes,
            host_allocated_bytes=mover.memory.live_bytes + mover.memory.spare_bytes,
            num_jobs=len(self.jobs),
            num_transfers_pending=mover.io.num_pending + mover.num_held,
            backlog_bytes=mover.io.backlog_bytes,
            copy_bytes_per_s=mover.copy_fit.bandwidth_bytes_per_s,
        )

    def check_integrity(self, strict: bool = False) -> None:
        """Raise IntegrityError if bytes, pins, index and files disagree (I5, I7, I10).

        `strict`: also if files are missing or shorter, which damage from outside may cause.
        """
        check_hierarchy(self.mover, self.jobs, strict)

    def wait_io(self, timeout_s: float = 10.0) -> bool:
        """Block until no file transfer is queued or moving, or the time is up; True if none is."""
        done = self.mover.io.wait_idle(timeout_s)
        self.mover.advance()
        return done

    def close(self) -> None:
        """End all loads, join the I/O thread, delete the disk tier's files; twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self.jobs.finish_all()
        self.mover.close()

    def __enter__(self) -> "Hierarchy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _has_room(self, page_bytes: int) -> bool:
        mover = self.mover
        return mover.staging.fits(page_bytes) or mover.dram.victims(page_bytes) is not None

    def _never_fits(self, page_bytes: int) -> bool:
        mover = self.mover
        return page_bytes > max(mover.staging.capacity_bytes, mover.dram.capacity_bytes)

    def _touch(self, key: TierKey, page_bytes: int) -> bool:
        held = False
        for table in self._tables():
            entry = table.get(key)
            if entry is not None and entry.page_bytes == page_bytes:
                table.touch(entry)
                held = True
            elif entry is not None:
                table.remove(entry)
        return held

    def _renew_private(self, key: PrivateKey) -> bool:
        epoch = self._epochs.get(key.request_id, -1)
        if key.epoch < epoch:
            return False
        if key.epoch > epoch:
            self.drop_private(key.request_id)
            self._epochs[key.request_id] = key.epoch
        for table in self._tables():
            entry = table.get(key)
            if entry is not None:
                table.remove(entry)
        return True

    def _tables(self) -> tuple[EntryTable, EntryTable]:
        return self.mover.dram, self.mover.disk.table

    def _table(self, tier: str) -> EntryTable:
        return self.mover.dram if tier == G2 else self.mover.disk.table

    def _stats(self, tier: str, table: EntryTable) -> TierStats:
        bucket = self.mover.buckets[tier]
        place = self.mover.disk.place if tier == G3 else ""
        return tier_stats(tier, table, self.mover.counters[tier], bucket.mb_s, place)
