"""Live change of the tiers: everything that can fail happens before anything changes."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy.admission import make_admission
from workbench.spatial.hierarchy.host_memory import MIN_STAGING_BYTES
from workbench.spatial.hierarchy.ladder import OBJECTS
from workbench.spatial.hierarchy.media import (
    MIB,
    SIZE_OF,
    WHAT,
    arrange,
    capacity_bytes,
    check_sizes,
    open_medium,
    page_budget_bytes,
    place_of,
    prepare,
    throttle_mb_s,
)
from workbench.spatial.hierarchy.medium import Medium
from workbench.spatial.hierarchy.mover import G2, Mover
from workbench.spatial.hierarchy.slow_tier import Place, SlowTier

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.hierarchy import Hierarchy

IO_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ConfigureReport:
    """What a live change did: bytes before and after, entries evicted, demoted and dropped."""

    dram_bytes_before: int
    dram_bytes: int
    disk_bytes_before: int
    disk_bytes: int
    num_evicted_dram: int = 0  # of which num_demoted went on living on disk
    num_demoted: int = 0
    num_evicted_disk: int = 0  # of all slow tiers
    num_pinned_kept: int = 0  # entries over the cap that a load still holds
    seconds: float = 0.0


def reconfigure(hierarchy: "Hierarchy", settings: TierSettings) -> ConfigureReport:
    """Apply settings; TierError leaves everything as it was."""
    mover, clock = hierarchy.mover, hierarchy.mover.clock
    start_s = clock.now_s()
    before = [table.capacity_bytes for table in mover.tables]
    dram_bytes, hint = int(settings.dram_mib * MIB), hierarchy.page_bytes_hint
    check_sizes(hint, dram_bytes, settings)
    opened = _open_media(mover, settings)

    mover.settings = settings
    mover.held.set_rate(G2, mover.dram_bucket, settings.dram_throttle_mb_s)
    if mover.ladder.admission.name != settings.admission:
        mover.ladder.admission = make_admission(settings.admission, clock)
    num_evicted_below = sum(
        _renew(hierarchy, at, settings, opened.get(tier.name))
        for at, tier in enumerate(mover.ladder.tiers)
    )
    num_on = sum(tier.on for tier in mover.ladder.tiers)
    staging_bytes = max(MIN_STAGING_BYTES, 8 * hint) * num_on
    mover.staging.capacity_bytes = staging_bytes
    mover.memory.set_limit(dram_bytes + staging_bytes)
    num_evicted, num_demoted = _resize_dram(mover, dram_bytes)
    over = mover.dram.used_bytes > dram_bytes
    return ConfigureReport(
        before[0],
        dram_bytes,
        before[1],
        mover.tables[1].capacity_bytes,
        num_evicted,
        num_demoted,
        num_evicted_below,
        sum(entry.pins > 0 for entry in mover.dram.all_entries()) if over else 0,
        clock.now_s() - start_s,
    )


def _open_media(mover: Mover, settings: TierSettings) -> dict[str, Medium]:
    """New media by tier, for those whose place changes; on TierError none stays open."""
    opened: dict[str, Medium] = {}
    try:
        for tier in mover.ladder.tiers:
            place = place_of(tier.name, settings)
            if place is not None and not _same(tier, place):
                opened[tier.name] = open_medium(tier.name, settings, mover.clock)
            elif place is not None and tier.medium is not None:
                prepare(tier.name, tier.medium, settings)
        _grow(mover, settings)
    except TierError:
        for medium in opened.values():
            medium.close(keep=True)
        raise
    return opened


def _grow(mover: Mover, settings: TierSettings) -> None:
    """Give media that stay a larger cap, which their disk may refuse; then none is larger."""
    grown: list[tuple[SlowTier, int]] = []
    for tier in mover.ladder.tiers:
        size, place = capacity_bytes(tier.name, settings), place_of(tier.name, settings)
        if place is None or not _same(tier, place) or size <= tier.cap_bytes:
            continue
        grown.append((tier, tier.cap_bytes))
        if not tier.resize(size):
            for other, before in grown:
                other.resize(before)
            raise TierError(
                f"tiers.{SIZE_OF[tier.name]} = {size / MIB:g} MiB: there is no room for "
                f"{WHAT[tier.name]} to grow; give it less, or another place"
            )


def _same(tier: SlowTier, place: Place) -> bool:
    now = tier.where if tier.on else None
    return now is not None and replace(now, keep=place.keep) == place


def _renew(hierarchy: "Hierarchy", at: int, settings: TierSettings, medium: Medium | None) -> int:
    """Bring one slow tier to the settings; returns how many entries it lost."""
    mover = hierarchy.mover
    tier = mover.ladder.tiers[at]
    place, size = place_of(tier.name, settings), capacity_bytes(tier.name, settings)
    split = settings.object_split if tier.name == OBJECTS else "order"
    tier.bucket.configure(throttle_mb_s(tier.name, settings), split)
    lost = 0
    if tier.on and (place is None or medium is not None):
        lost = len(tier.table)
        mover.ladder.close_tier(tier)
    kept = medium or tier.medium
    if place is not None and kept is not None:  # first: what is found there may be coded
        private = not kept.shared and not place.keep
        tier.edge.choose(settings.disk_codec, hierarchy.make_codec, private)
    if place is not None and medium is not None:
        tier.open(medium, place, size, page_budget_bytes(medium, size))
    elif place is not None:
        tier.where = place
        lost += _resize(mover, at, size)
    tier.adjust(lambda medium: arrange(medium, settings))
    return lost


def _resize(mover: Mover, at: int, size: int) -> int:
    """Evict to a new cap; one that is larger has been given to the medium already."""
    tier, evicted = mover.ladder.tiers[at], 0
    shrinks = size < tier.cap_bytes
    if shrinks:
        tier.resize(size)
    if tier.medium is None:
        return 0
    budget = page_budget_bytes(tier.medium, size)
    if budget < tier.table.used_bytes:
        tier.io.wait_idle(IO_TIMEOUT_S)
        mover.advance()
        for entry in tier.table.all_entries():
            if tier.table.used_bytes - tier.table.leaving_bytes <= budget:
                break
            mover.ladder.evict(at, entry)
            evicted += 1
    tier.table.capacity_bytes = budget
    return evicted


def _resize_dram(mover: Mover, dram_bytes: int) -> tuple[int, int]:
    mover.dram.capacity_bytes = dram_bytes
    evicted, demoted = mover.trim_dram()
    if dram_bytes == 0:
        for entry in mover.dram.all_entries():  # pinned ones stay until a load lets them go
            mover.dram.remove(entry)
            evicted += 1
    return evicted, demoted
