"""What the page of the tiers shows: measured costs, what fetches were worth, where blocks went."""

import msgspec


class CostView(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a tier: seconds = `latency_s` + bytes / `bytes_per_s`, fitted to transfers.

    `bytes_per_s` is 0 while `samples` is: nothing was measured.
    """

    latency_s: float
    bytes_per_s: float
    samples: int


class SizeCostView(msgspec.Struct, frozen=True, kw_only=True):
    """What a transfer of so many bytes took when the tier was opened: medians of `num_tries`."""

    num_bytes: int
    load_s: float
    store_s: float
    num_tries: int


class OutageView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier's medium `can` suffer by hand, and what it does: `unplugged`, `full` or nothing.

    `num_faults`: reads and writes that failed since; `left_alone`: it is not asked just now.
    """

    can: list[str]
    kind: str
    num_faults: int
    left_alone: bool


class TierReport(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one tier below HBM since it was opened. Sizes in bytes, times in seconds.

    `way`: how its bytes move, such as `io_uring, O_DIRECT` or `NIXL POSIX, O_DIRECT`.

    `fetch_s`: what its fetches took, from their start until they were at hand. Of the tokens
    fetched `fetched_tokens` went into a request's blocks, the others in vain; `recompute_s`: what
    computing those again was predicted to take. `num_refused` pages were not
    taken and stores waited `slowed_s` because of a tier's backlog, which is `backlog_s` now.
    `num_read_ios` and `num_write_ios`: I/Os or requests its medium was asked for, None where that
    is not counted. `at_once`: blocks that move together, with one latency. `sizes`: what transfers
    took while it was measured, unthrottled, in the `probe_s` seconds after it was opened.
    `num_held`: blocks under a lease or pin now; `num_soft`: those that go last. `outage`: what can
    be done to its medium by hand and what was; None for DRAM, and where the tier is off.
    """

    name: str
    medium: str
    place: str
    way: str
    enabled: bool
    capacity_bytes: int
    used_bytes: int
    num_entries: int
    load: CostView
    store: CostView
    at_once: int
    num_refused: int
    slowed_s: float
    backlog_s: float
    num_read_ios: int | None
    num_write_ios: int | None
    sizes: list[SizeCostView]
    probe_s: float
    hits: int
    misses: int
    num_stores: int
    num_loads: int
    num_evictions: int
    num_dropped: int
    stored_bytes: int
    loaded_bytes: int
    faults: dict[str, int]
    failed: str
    provenance: str
    throttle_mb_s: float
    fetched_tokens: int
    fetch_s: float
    recompute_s: float
    num_held: int = 0
    num_soft: int = 0
    outage: OutageView | None = None


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """What a shared store holds for all its engines, as it said last.

    `leased`: pages that a reader holds; `held`: kept for requests that wait; the others have gone.
    """

    pages: int
    leased: int
    held: int
    evicted: int
    expired: int


class SpanView(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one step in ms from its first transfer on, over the layers `first` to `last`.

    `row`: the tier that loaded, `wait` where the step stood still, `compute` where it did not.
    """

    row: str
    first: int
    last: int
    start_ms: float
    end_ms: float


class OverlapView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest step that loaded by layers: what moved, what waited, what was computed.

    `hidden`: the share of the transfers' time in which the step did not wait for them.
    """

    request_ids: list[str]
    spans: list[SpanView]
    transfer_ms: float
    wait_ms: float
    compute_ms: float
    hidden: float


class PlacementView(msgspec.Struct, frozen=True, kw_only=True):
    """By which policy blocks leave tiers, how often it failed, and pages left out or late."""

    policy: str
    num_faults: int
    retrieval: str
    num_left_out: int
    num_late: int  # of those, written into their tables later


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that went from one tier to another: since the start, and per second of late."""

    source: str
    to: str
    num_bytes: int
    bytes_per_s: float


class TiersReport(msgspec.Struct, frozen=True, kw_only=True):
    """All tiers below HBM, and what a fetch is weighed against.

    `recompute_s_per_token` is 0 before a prompt was computed. `block_bytes`: of one block in every
    layer. `copy_bytes_per_s`: from host memory into pages. `damages`: kinds for `inject_fault`.
    `flow_window_s`: over how long the rates of `flows` are taken.
    """

    tiers: list[TierReport]
    recompute_s_per_token: float
    block_tokens: int
    block_bytes: int
    copy_bytes_per_s: float
    gate: bool
    num_gated: int
    num_late: int
    num_failed_pages: int
    damages: list[str]
    overlap: OverlapView | None = None
    store: StoreView | None = None
    placement: PlacementView | None = None
    flows: list[FlowView] = []
    flow_window_s: float = 0.0


class HoldView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a lease or pin: the block's key (hex), empty where no tier has it.

    `tiers`: those that have the block and keep it; `loose`: those where nothing can hold it.
    `others`: of `tiers`, where other engines may still delete it.
    """

    key: str = ""
    tiers: list[str] = []
    loose: list[str] = []
    others: list[str] = []


class BlockMove(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to one block.

    `what`: entered (G1, visible to others), stored, fetched, left (by eviction) or fault.
    `tier`: where; `detail`: how long a fetch took, or which fault.
    """

    key: str  # hex
    time_s: float
    step: int
    what: str
    tier: str
    request_id: str = ""
    detail: str = ""
