"""The tiers' costs and worth, for the page that explains them."""

import math
from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.keys import key_text
from workbench.engine.views.overlap_view import overlap_view
from workbench.errors import SettingError
from workbench.spatial.hierarchy.cost_probe import SizeCost
from workbench.spatial.hierarchy.counters import FitStats, TierStats
from workbench.spatial.hierarchy.faults import FAULTS, inject
from workbench.spatial.hierarchy.flows import WINDOW_S
from workbench.spatial.hierarchy.io_thread import MOST_AT_ONCE
from workbench.spatial.hierarchy.ladder import SLOW
from workbench.spatial.hierarchy.outages import KINDS as OUTAGES
from workbench.spatial.hierarchy.outages import OutageState
from workbench.spatial.hierarchy.pins import Hold
from workbench.spatial.hierarchy.shared_store_protocol import Usage
from workbench.temporal.scheduling.loads import TierGain
from workbench.tier_views import (
    BlockMove,
    CostView,
    FlowView,
    HoldView,
    OutageView,
    PlacementView,
    SizeCostView,
    StoreView,
    TierReport,
    TiersReport,
)

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

KINDS = {
    "disk": "disk", "store": "shared store", "valkey": "Valkey", "mooncake": "Mooncake",
    "objects": "objects",
}  # fmt: skip
USUAL = {"G2": "DRAM", "G3": "disk", "G3.5": "shared store", "G4": "objects"}
OPTIONAL = ("NIXL", "kvikio")  # transports named wherever the medium is
HOLDS = ("lease", "hard", "soft", "none")
MOST_HELD_S = 86_400.0
MOST_TRAVELLED = 40  # blocks offered where none is named


def tiers_report(engine: "Engine") -> TiersReport:
    """Everything known of the tiers now."""
    stats, counters = engine.hierarchy.stats(), engine.fetcher.counters
    return TiersReport(
        tiers=[
            _tier(engine, tier, counters.gains.get(tier.name, TierGain())) for tier in stats.tiers
        ],
        recompute_s_per_token=engine.metrics.recompute_s(1) or 0.0,
        block_tokens=engine.config.cache.block_size,
        block_bytes=sum(spec.page_bytes for spec in engine.stack.specs.full),
        copy_bytes_per_s=stats.copy_bytes_per_s,
        gate=engine.config.tiers.gate,
        num_gated=counters.num_gated,
        num_late=counters.num_late_loads,
        num_failed_pages=counters.num_failed_pages,
        damages=list(FAULTS),
        overlap=overlap_view(engine.fetcher.layers.last),
        store=_store(engine.hierarchy.shared_usage()),
        placement=PlacementView(
            policy=engine.config.tiers.policy,
            num_faults=engine.hierarchy.mover.placer.num_faults,
            retrieval=engine.config.tiers.retrieval,
            num_left_out=counters.num_left_out_pages,
            num_late=counters.num_late_pages,
        ),
        flows=[
            FlowView(source=flow.source, to=flow.to, num_bytes=flow.num_bytes,
                     bytes_per_s=flow.bytes_per_s)
            for flow in engine.hierarchy.flows()
        ],
        flow_window_s=WINDOW_S,
    )  # fmt: skip


def _store(usage: Usage | None) -> StoreView | None:
    if usage is None:
        return None
    return StoreView(
        pages=usage.num_pages,
        leased=usage.num_leased,
        held=usage.num_held,
        evicted=usage.num_evicted,
        expired=usage.num_expired,
    )


def _tier(engine: "Engine", stats: TierStats, gain: TierGain) -> TierReport:
    holds = [row[2] for row in engine.hierarchy.entries(stats.name)]
    return TierReport(
        name=stats.name,
        medium=medium_name(stats),
        place=stats.place,
        way=stats.way,
        enabled=stats.on,
        capacity_bytes=stats.capacity_bytes,
        used_bytes=stats.used_bytes,
        num_entries=stats.num_entries,
        load=_cost(stats.fit),
        store=_cost(stats.store_fit),
        at_once=1 if stats.name == "G2" else MOST_AT_ONCE,
        num_refused=stats.num_refused,
        slowed_s=stats.slowed_s,
        backlog_s=stats.backlog_s,
        num_read_ios=None if stats.ios is None else stats.ios.num_reads,
        num_write_ios=None if stats.ios is None else stats.ios.num_writes,
        sizes=[_size(size) for size in stats.probe.sizes],
        probe_s=stats.probe.seconds,
        hits=stats.num_hits,
        misses=stats.num_misses,
        num_stores=stats.num_stores,
        num_loads=stats.num_loads,
        num_evictions=stats.num_evictions,
        num_dropped=stats.num_dropped_stores,
        stored_bytes=stats.stored_bytes,
        loaded_bytes=stats.loaded_bytes,
        faults=stats.faults,
        failed=stats.failed,
        provenance=stats.provenance,
        throttle_mb_s=stats.throttle_mb_s,
        fetched_tokens=gain.num_tokens,
        fetch_s=gain.fetch_s,
        recompute_s=gain.recompute_s,
        num_held=holds.count(Hold.HARD),
        num_soft=holds.count(Hold.SOFT),
        outage=_outage(engine.hierarchy.outages().get(stats.name)),
    )


def _outage(state: OutageState | None) -> OutageView | None:
    if state is None:
        return None
    return OutageView(
        can=list(state.can), kind=state.kind, num_faults=state.num_faults,
        left_alone=state.left_alone,
    )  # fmt: skip


def _cost(fit: FitStats) -> CostView:
    return CostView(
        latency_s=fit.latency_s, bytes_per_s=fit.bandwidth_bytes_per_s, samples=fit.num_seen
    )


def _size(size: SizeCost) -> SizeCostView:
    return SizeCostView(
        num_bytes=size.num_bytes,
        load_s=size.load_s,
        store_s=size.store_s,
        num_tries=len(size.seconds),
    )


def medium_name(stats: TierStats) -> str:
    """What a tier's bytes lie on, in a word; where it is off, what they would lie on."""
    name = KINDS.get(stats.kind) or USUAL.get(stats.name, stats.name)
    other = next((word for word in OPTIONAL if stats.way.startswith(word)), "")
    return f"{name} ({other})" if other else name


def journey(engine: "Engine", key: str) -> list[BlockMove]:
    """Moves of one block, oldest first; without a key the last move of those that moved most."""
    journeys = engine.log.journeys
    if key:
        return journeys.of(key)
    return [journeys.of(each)[-1] for each in journeys.travelled(MOST_TRAVELLED)]


def hold_block(engine: "Engine", key: str, kind: str, seconds: float) -> HoldView:
    """Pin, lease or let go the block whose key (hex) begins so, and say which tiers keep it.

    Nothing is held where all tiers that have it evict by themselves. SettingError for a kind or a
    time that does not exist.
    """
    if kind not in HOLDS:
        raise SettingError(f"unknown hold {kind!r}: choose one of {', '.join(HOLDS)}")
    if kind in ("lease", "soft") and not 0.0 < seconds <= MOST_HELD_S:
        raise SettingError(
            f"a hold of {seconds:g} s: give seconds above 0, at most {MOST_HELD_S:g}"
        )
    hierarchy = engine.hierarchy
    there = {row[0] for tier in USUAL for row in hierarchy.entries(tier)}
    found = [one for one in there if key_text(one).startswith(key)]
    if not key or not found:
        return HoldView()
    chosen = min(found, key=key_text)
    if kind == "none":
        hierarchy.holds.unpin(chosen)
    else:
        hierarchy.holds.pin(chosen, math.inf if kind == "hard" else seconds, soft=kind == "soft")
    tiers = hierarchy.holds.tiers_with(chosen)
    kept = [name for name, holds in tiers if holds]
    loose = [name for name, holds in tiers if not holds]
    return HoldView(
        key=key_text(chosen),
        tiers=kept,
        loose=loose,
        others=[name for name in kept if name == "G4"],
    )


def damage(engine: "Engine", kind: str) -> str:
    """Damage real bytes of a tier as `faults.inject` does; the key hit, empty if nothing is there.

    SettingError for a kind that does not exist.
    """
    if kind not in FAULTS:
        raise SettingError(f"unknown fault {kind!r}: choose one of {', '.join(FAULTS)}")
    done = inject(engine.hierarchy, kind, np.random.default_rng())
    if done is None:
        return ""
    return kind if done.key is None else key_text(done.key)


def set_outage(engine: "Engine", tier: str, kind: str) -> None:
    """Unplug or fill a tier's medium, or plug it in again.

    SettingError for a tier or a kind that does not exist, TierError where it cannot be.
    """
    kinds = (*OUTAGES, "none")
    if tier not in SLOW:
        raise SettingError(f"unknown tier {tier!r}: choose one of {', '.join(SLOW)}")
    if kind not in kinds:
        raise SettingError(f"unknown outage {kind!r}: choose one of {', '.join(kinds)}")
    engine.hierarchy.strike(tier, kind)
