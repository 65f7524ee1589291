"""All memory below HBM behind one interface: DRAM (G2) and the ladder under it, each optional."""

from collections.abc import Callable, Sequence

import numpy as np

from workbench.cache.codec import Codec, CodedRow
from workbench.cache.keys import PrivateKey, TierKey
from workbench.cache.placement import PageFacts
from workbench.cache.tier import LoadResult
from workbench.clock import Clock
from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy.bandwidth import probe_memory
from workbench.spatial.hierarchy.counters import HierarchyStats, TierStats, tier_stats
from workbench.spatial.hierarchy.entries import EntryTable
from workbench.spatial.hierarchy.flows import Flow
from workbench.spatial.hierarchy.holds import Holds
from workbench.spatial.hierarchy.host_memory import HostPins
from workbench.spatial.hierarchy.intake import Intake
from workbench.spatial.hierarchy.integrity import check_hierarchy
from workbench.spatial.hierarchy.ladder import POOL
from workbench.spatial.hierarchy.load_jobs import LoadJobs
from workbench.spatial.hierarchy.lookups import Lookups
from workbench.spatial.hierarchy.mover import G2, Mover, OnEvent
from workbench.spatial.hierarchy.outages import OutageState, restore, state_of, strike
from workbench.spatial.hierarchy.pins import Hold
from workbench.spatial.hierarchy.reconfigure import ConfigureReport, reconfigure
from workbench.spatial.hierarchy.shared_store_protocol import Usage
from workbench.spatial.hierarchy.shared_usage import SharedUsage
from workbench.spatial.hierarchy.slice_loads import SliceLoads
from workbench.spatial.hierarchy.slow_tier import SlowTier
from workbench.spatial.hierarchy.waiting import Waiting


class Hierarchy:
    """Tiers below HBM (implements `KVHierarchy`); one thread, the engine's, calls it.

    G2 takes stores and demotes its least recently used pages to the first slow tier that takes
    them (G3 disk, G3.5 pool, G4 objects); a hit there is promoted into G2. With G2 off, the slow
    tiers work alone through counted staging.
    `page_bytes_hint`: the largest page the engine will store. TierError if a tier cannot open.
    """

    def __init__(
        self,
        settings: TierSettings,
        page_bytes_hint: int,
        clock: Clock,
        on_event: OnEvent,
        make_codec: Callable[[str], Codec | None] = lambda name: None,
        host_pins: HostPins | None = None,
    ) -> None:
        self.make_codec = make_codec
        self.page_bytes_hint = page_bytes_hint
        self.settings = TierSettings()
        self.mover = Mover(clock, on_event, host_pins)
        self.jobs = LoadJobs(self.mover)
        self.lookups = Lookups(self.mover)
        self.holds = Holds(self.mover)
        self.by_slices = SliceLoads(self.mover, self.jobs)
        self.before_turn = Waiting(self.mover)
        self._shared_usage = SharedUsage(self._slow(POOL))
        self._intake = Intake(self.mover)
        self._closed = False
        counters = self.mover.counters[G2]
        counters.probe = probe_memory(
            clock, counters.load_fit, counters.store_fit, self.mover.copy_fit
        )
        try:
            self.configure(settings)
        except BaseException:
            self.close()
            raise

    def begin_step(self, step: int) -> None:
        """What is stored or read from now on is so at this step of the engine."""
        self.mover.placer.begin_step()
        for table in self.mover.tables:
            table.step = step

    def last_step(self, tier: str, key: TierKey) -> int | None:
        """Step at which a key was stored or read last in a tier; None if it is not there."""
        entry = self._table(tier).get(key)
        return None if entry is None else entry.last_step

    def charge(self, tier: str, page_bytes: int, num_slices: int) -> int:
        """Bytes of a tier's budget that a page takes."""
        return page_bytes if tier == G2 else self._slow(tier).charge(page_bytes, num_slices)

    @property
    def first_tier(self) -> str:
        """Name of the uppermost tier that is on; empty where none is."""
        first = self.mover.ladder.first_on()
        return G2 if self.mover.dram.capacity_bytes else first.name if first is not None else ""

    @property
    def codec_numerics(self) -> str:
        """The numerics tag of what slow tiers give back; empty where that is what they got."""
        tags = (tier.edge.numerics for tier in self.mover.ladder.tiers if tier.on)
        return next(filter(None, tags), "")

    @property
    def codec_bytes(self) -> int:
        """Memory of what the codecs' blobs have in common."""
        codecs = (tier.edge.codec for tier in self.mover.ladder.tiers)
        return sum(codec.shared_bytes for codec in codecs if codec is not None)

    def submit_load(
        self,
        keys: Sequence[TierKey],
        num_slices: int = 1,
        compute_s: float = 0.0,
        ahead: bool = False,
        verify: bool = True,
    ) -> int:
        """Pin the keys and start loading them; returns the job's id (see `KVHierarchy`)."""
        return self.jobs.submit(keys, num_slices, compute_s, ahead, verify)

    def copied(self, job_id: int, key: TierKey, seconds: float) -> None:
        """A page of a load was verified and copied, which took so long."""
        self.jobs.copied(job_id, key, seconds)

    def spoiled(self, job_id: int, key: TierKey) -> None:
        """A page of a load is not what was stored: it is counted, and gone from DRAM."""
        self.jobs.spoiled(job_id, key)

    def poll(self) -> list[LoadResult]:
        """Finished loads since the last call; also lets stores and demotions advance."""
        self.mover.advance()
        return self.jobs.deliver()

    def take_arrived(self, job_id: int) -> LoadResult:
        """End a load that was not delivered: its leading pages that are there now, and no others.

        `complete_load` is due for them as for any other.
        """
        return self.jobs.take_arrived(job_id)

    def complete_load(self, job_id: int) -> None:
        """Unpin what a finished (or cancelled) job held; its page views are invalid from now."""
        self.jobs.finish(job_id)
        self.mover.trim_dram()

    def cancel_load(self, job_id: int) -> None:
        """Forget a job; its pins are released when its I/O has ended."""
        self.complete_load(job_id)

    def store(
        self,
        key: TierKey,
        page: np.ndarray,
        num_slices: int,
        coded: CodedRow | None = None,
        facts: PageFacts | None = None,
    ) -> bool:
        """Copy a page down; False if no tier took it.

        `page`: uint8 [page_bytes], read before return, cut into `num_slices` checksummed parts.
        `coded`: what a lossy codec may make of it, and under which key. `facts`: what is known of
        it, for the placement policy.
        A prefix key that is held already is only touched: its bytes cannot differ. A private key
        of an older epoch is refused, one of a newer epoch drops those before it. TierError if the
        page is not a multiple of `num_slices` bytes.
        """
        if num_slices < 1 or page.nbytes == 0 or page.nbytes % num_slices:
            raise TierError(
                f"a page of {page.nbytes} bytes cannot be cut into {num_slices} equal slices: "
                "choose a divisor of the page's size"
            )
        facts = facts or PageFacts()
        facts.use(self.mover.clock.now_s())
        self.mover.placer.block_tokens = facts.num_tokens or self.mover.placer.block_tokens
        if isinstance(key, PrivateKey):
            if not self._intake.renew(key):
                return False
        else:
            self.mover.ladder.admission.seen(key)
            if self._intake.touch(key, page.nbytes):
                self.mover.renewed(key, facts)
                return True
        self.mover.ladder.slow_down()
        flat = np.ascontiguousarray(page).reshape(-1).view(np.uint8)
        return self.mover.store(key, flat, num_slices, coded, facts)

    def drop_private(self, request_id: str) -> None:
        """Forget every private entry of a request."""
        self._intake.drop(request_id)

    def clear(self) -> None:
        """Forget everything (tiers stay open); loads in flight still deliver what they pinned."""
        self._intake.clear()
        self.mover.pins.clear()
        for table in self.mover.tables:
            for entry in table.all_entries():
                table.remove(entry)
        for tier in self.mover.ladder.tiers:
            tier.answers.forget()

    def configure(self, settings: TierSettings) -> ConfigureReport:
        """Change sizes, path, throttles live; on TierError everything stays as it was."""
        report = reconfigure(self, settings)
        self.settings = settings
        return report

    def strike(self, name: str, kind: str) -> None:
        """Unplug or fill a slow tier's medium, or with kind "none" plug it in again (`outages`).

        TierError in one sentence where that cannot be.
        """
        tier = self._slow(name)
        if kind == "none":
            restore(tier)
        else:
            strike(tier, kind)

    def outages(self) -> dict[str, OutageState]:
        """Of each slow tier that is on, what can be done to it and what was."""
        return {tier.name: state_of(tier) for tier in self.mover.ladder.tiers if tier.on}

    def keep(self, keys: Sequence[TierKey], seconds: float) -> None:
        """Evict these keys last for so long, wherever they lie or will lie."""
        self.holds.keep(keys, seconds)

    def entries(self, tier: str) -> list[tuple[TierKey, int, Hold, int]]:
        """(key, bytes, hold, last used) of a tier, least recently used first.

        Cached until something changes; `version(tier)` tells whether it did.
        """
        return self._table(tier).rows()

    @property
    def num_entries(self) -> int:
        """Entries of all tiers together."""
        return sum(map(len, self.mover.tables))

    def version(self, tier: str) -> int:
        """A counter that moves whenever the tier's entries change."""
        return self._table(tier).version

    def flows(self) -> list[Flow]:
        """Bytes from tier to tier, HBM too: since the start, and per second just now."""
        return self.mover.flows.edges()

    def stats(self) -> HierarchyStats:
        """Counts of all tiers and of the host memory they share."""
        mover = self.mover
        return HierarchyStats(
            tiers=(
                tier_stats(
                    G2, mover.dram, mover.counters[G2], mover.dram_bucket.mb_s, way=mover.memory.way
                ),
                *(self._stats(tier) for tier in mover.ladder.tiers),
            ),
            staging_used_bytes=mover.staging.used_bytes,
            staging_capacity_bytes=mover.staging.capacity_bytes,
            host_spare_bytes=mover.memory.spare_bytes,
            host_allocated_bytes=mover.memory.live_bytes + mover.memory.spare_bytes,
            host_unwritten_bytes=mover.memory.unwritten_bytes,
            num_jobs=len(self.jobs),
            num_transfers_pending=mover.ladder.num_pending
            + mover.ladder.num_held
            + len(mover.held),
            backlog_bytes=mover.ladder.backlog_bytes,
            copy_bytes_per_s=mover.copy_fit.bandwidth_bytes_per_s,
        )

    def shared_usage(self) -> Usage | None:
        """What a shared store said of its pages and leases last; each call asks it anew."""
        return self._shared_usage.look()

    def check_integrity(self, strict: bool = False) -> None:
        """Raise IntegrityError if bytes, pins, index and files disagree (I5, I7, I10).

        `strict`: also if files are missing or shorter, which damage from outside may cause.
        """
        check_hierarchy(self.mover, self.jobs, strict)

    def wait_io(self, timeout_s: float = 10.0) -> bool:
        """Block until no transfer is queued or moving, or the time is up; True if none is."""
        ladder, clock = self.mover.ladder, self.mover.clock
        until_s = clock.now_s() + timeout_s
        while True:  # what comes up from one tier may go down to the next
            done = ladder.wait_idle(max(0.0, until_s - clock.now_s()))
            self.mover.advance()
            if not done or not ladder.num_pending or clock.now_s() >= until_s:
                return done

    def close(self) -> None:
        """End all loads, join the threads, delete what is not kept; twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self.jobs.finish_all()
        self.mover.close()

    def __enter__(self) -> "Hierarchy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slow(self, name: str) -> SlowTier:
        return next(tier for tier in self.mover.ladder.tiers if tier.name == name)

    def _table(self, tier: str) -> EntryTable:
        return self.mover.dram if tier == G2 else self._slow(tier).table

    def _stats(self, tier: SlowTier) -> TierStats:
        kind = tier.where.kind if tier.where is not None and tier.on else ""
        return tier_stats(
            tier.name,
            tier.table,
            tier.counters,
            tier.bucket.mb_s,
            tier.place,
            kind,
            tier.medium.way if tier.medium is not None else "",
            tier.ios,
            tier.store_backlog_s,
        )
