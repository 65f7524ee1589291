"""The tiers' share of the invariants, checked from the outside in."""

from workbench.errors import IntegrityError
from workbench.spatial.hierarchy.load_jobs import LoadJobs
from workbench.spatial.hierarchy.mover import Mover
from workbench.spatial.hierarchy.slow_tier import SlowTier


def check_hierarchy(mover: Mover, jobs: LoadJobs, strict: bool) -> None:
    """Raise IntegrityError naming the first disagreement found (I5, I7, I10)."""
    for table in mover.tables:
        table.check()
    _check_host_memory(mover)
    if mover.ladder.num_pending or mover.ladder.num_held or len(mover.held):
        return
    for tier in mover.ladder.tiers:
        _check_medium(tier, strict)
    pinned = [tier.name for tier in mover.ladder.tiers if tier.table.pinned_bytes]
    if pinned:
        raise IntegrityError(f"pages of {pinned[0]} are pinned although no transfer is pending")
    if len(jobs) == 0:
        kept = sum(entry.charged_bytes for entry in mover.kept.values())
        if mover.dram.pinned_bytes != kept:
            raise IntegrityError("pages are pinned although no load is in flight")
        if mover.staging.used_bytes:
            raise IntegrityError(
                f"{mover.staging.used_bytes} bytes of staging are held although nothing moves"
            )


def _check_medium(tier: SlowTier, strict: bool) -> None:
    """A medium that is ours alone holds what its index says, to the byte."""
    if tier.medium is None or tier.shared:
        return
    real, counted = tier.medium.real_bytes, tier.table.used_bytes
    if real > counted or (strict and real != counted):
        raise IntegrityError(
            f"{tier.name} counts {counted} bytes but its medium holds {real}: its index and its "
            "pages differ"
        )


def _check_host_memory(mover: Mover) -> None:
    memory = mover.memory
    allocated = sum(buffer.nbytes for buffer in memory.live.values())
    counted = mover.dram.used_bytes + mover.staging.used_bytes
    if not allocated == memory.live_bytes == counted:
        raise IntegrityError(
            f"host memory holds {allocated} bytes of pages but DRAM and staging count {counted}"
        )
    entries = [*mover.dram.all_entries(), *mover.dram.doomed.values()]
    buffers = {id(entry.buffer) for entry in entries}
    if len(buffers) != len(entries) or not buffers <= set(memory.live):
        raise IntegrityError("two pages of DRAM share a buffer, or one has none")
