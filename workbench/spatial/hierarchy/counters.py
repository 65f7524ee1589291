"""What the tiers count, and the snapshot of it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workbench.spatial.hierarchy.bandwidth import TransferFit
from workbench.spatial.hierarchy.cost_probe import CostProbe
from workbench.spatial.hierarchy.io_counts import IoTotals

FAILED_AFTER = 8  # faults in a row, none of them for want of room, and a tier counts as failed


@dataclass
class TierCounters:
    """Totals of one tier since it was opened: bytes, seconds, lookups and faults by reason."""

    num_hits: int = 0
    num_misses: int = 0
    num_stores: int = 0
    num_loads: int = 0
    num_dropped_stores: int = 0
    num_refused: int = 0  # pages, because of the backlog
    slowed_s: float = 0.0  # that stores waited for the backlog
    num_evictions: int = 0
    num_handed_down: int = 0  # of the evicted, those that the tier below has now
    num_gone: int = 0  # found missing on a shared medium
    stored_bytes: int = 0
    loaded_bytes: int = 0
    store_s: float = 0.0
    load_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    num_failed: int = 0  # faults since the last transfer that went well
    last_fault: str = ""
    load_fit: TransferFit = field(default_factory=TransferFit)
    store_fit: TransferFit = field(default_factory=TransferFit)
    probe: CostProbe = field(default_factory=CostProbe)  # from when it was opened

    def stored(self, num_bytes: int, seconds: float, learn: bool = True) -> None:
        """Count one finished store; `learn` from it where nothing else moved with it."""
        self.num_failed = 0
        self.num_stores += 1
        self.stored_bytes += num_bytes
        self.store_s += seconds
        if learn:
            self.store_fit.observe(num_bytes, seconds)

    def loaded(self, num_bytes: int, seconds: float, learn: bool = True) -> None:
        """Count one finished load; `learn` from it where nothing else moved with it."""
        self.num_failed = 0
        self.num_loads += 1
        self.loaded_bytes += num_bytes
        self.load_s += seconds
        if learn:
            self.load_fit.observe(num_bytes, seconds)

    def handed_down(self) -> None:
        """Count a page that was read for the tier below; it is no load."""
        self.num_failed = 0
        self.num_handed_down += 1

    def gone(self) -> None:
        """A shared medium evicted a page after a lookup had found it: no fault."""
        self.num_gone += 1

    def fault(self, reason: str) -> None:
        """Count one fault; a tier that only lacked room has not failed."""
        self.faults[reason] += 1
        if reason != "no_room":
            self.num_failed += 1
            self.last_fault = reason

    def reopened(self) -> None:
        """The tier's bytes lie somewhere else from now on: nothing is known of that place."""
        self.load_fit, self.store_fit = TransferFit(), TransferFit()
        self.probe = CostProbe()
        self.num_failed = 0


@dataclass(frozen=True)
class FitStats:
    """Latency in seconds and bandwidth in bytes per second of one direction."""

    latency_s: float
    bandwidth_bytes_per_s: float
    num_seen: int


@dataclass(frozen=True)
class TierStats:
    """Snapshot of one tier. Sizes in bytes, times in seconds.

    `provenance`: "measured", or "throttled" when a token bucket of `throttle_mb_s` slows it.
    `num_hits` and `num_misses` count lookups; a tier is asked only when those above have nothing.
    """

    name: str
    on: bool
    capacity_bytes: int
    used_bytes: int
    pinned_bytes: int
    num_entries: int
    num_private: int
    num_hits: int
    num_misses: int
    num_stores: int
    num_loads: int
    num_dropped_stores: int
    num_evictions: int
    num_handed_down: int
    num_gone: int
    stored_bytes: int
    loaded_bytes: int
    store_s: float
    load_s: float
    faults: dict[str, int]
    provenance: str
    throttle_mb_s: float
    fit: FitStats
    store_fit: FitStats
    place: str = ""  # of its medium: a folder, an address, a URL
    kind: str = ""  # of its medium: disk, store, valkey, mooncake, objects
    way: str = ""  # how its bytes move: io_uring, NIXL, HTTP
    num_failed: int = 0  # faults since the last transfer that went well
    last_fault: str = ""
    probe: CostProbe = CostProbe()
    num_refused: int = 0
    slowed_s: float = 0.0
    backlog_s: float = 0.0  # predicted, of what is on its way down
    ios: IoTotals | None = None  # what the medium was asked for; None where that is not counted

    @property
    def failed(self) -> str:
        """Why the tier does not work, after so many faults in a row; empty while it does."""
        return self.last_fault if self.on and self.num_failed >= FAILED_AFTER else ""


@dataclass(frozen=True)
class HierarchyStats:
    """Snapshot of all tiers below HBM, with the host memory that they share.

    `host_allocated_bytes` = DRAM pages + staging + kept buffers, all of it allocated; of these,
    `host_unwritten_bytes` have held nothing yet.
    `copy_bytes_per_s`: host-to-host copy measured at the start.
    """

    tiers: tuple[TierStats, ...]
    staging_used_bytes: int
    staging_capacity_bytes: int
    host_spare_bytes: int
    host_allocated_bytes: int
    host_unwritten_bytes: int
    num_jobs: int
    num_transfers_pending: int
    backlog_bytes: int
    copy_bytes_per_s: float


def fit_stats(fit: TransferFit, throttle_mb_s: float) -> FitStats:
    """A fit as figures; a throttle caps the bandwidth."""
    rate = fit.bandwidth_bytes_per_s
    if throttle_mb_s > 0:
        rate = min(rate, throttle_mb_s * 1e6) if rate else throttle_mb_s * 1e6
    return FitStats(fit.latency_s, rate, fit.num_seen)


def tier_stats(
    name: str,
    table: Any,
    counters: TierCounters,
    throttle_mb_s: float,
    place: str = "",
    kind: str = "",
    way: str = "",
    ios: IoTotals | None = None,
    backlog_s: float = 0.0,
) -> TierStats:
    """Snapshot of one tier from its entry table and counters."""
    return TierStats(
        name=name,
        on=table.capacity_bytes > 0,
        capacity_bytes=table.capacity_bytes,
        used_bytes=table.used_bytes,
        pinned_bytes=table.pinned_bytes,
        num_entries=len(table),
        num_private=table.num_private,
        num_hits=counters.num_hits,
        num_misses=counters.num_misses,
        num_stores=counters.num_stores,
        num_loads=counters.num_loads,
        num_dropped_stores=counters.num_dropped_stores,
        num_evictions=counters.num_evictions,
        num_handed_down=counters.num_handed_down,
        num_gone=counters.num_gone,
        stored_bytes=counters.stored_bytes,
        loaded_bytes=counters.loaded_bytes,
        store_s=counters.store_s,
        load_s=counters.load_s,
        faults=dict(counters.faults),
        provenance="throttled" if throttle_mb_s > 0 else "measured",
        throttle_mb_s=throttle_mb_s,
        fit=fit_stats(counters.load_fit, throttle_mb_s),
        store_fit=fit_stats(counters.store_fit, throttle_mb_s),
        place=place,
        kind=kind,
        way=way,
        num_failed=counters.num_failed,
        last_fault=counters.last_fault,
        probe=counters.probe,
        num_refused=counters.num_refused,
        slowed_s=counters.slowed_s,
        backlog_s=backlog_s,
        ios=ios,
    )
