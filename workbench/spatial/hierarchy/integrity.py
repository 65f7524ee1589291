"""The tiers' share of the invariants, checked from the outside in."""

from workbench.errors import IntegrityError
from workbench.spatial.hierarchy.load_jobs import LoadJobs
from workbench.spatial.hierarchy.mover import Mover


def check_hierarchy(mover: Mover, jobs: LoadJobs, strict: bool) -> None:
    """Raise IntegrityError naming the first disagreement found (I5, I7, I10)."""
    mover.dram.check()
    _check_host_memory(mover)
    quiet = mover.io.num_pending == 0 and mover.num_held == 0
    mover.disk.check(idle=quiet, strict=strict)
    if not quiet:
        return
    if len(jobs) == 0:
        kept = sum(entry.charged_bytes for entry in mover.kept.values())
        if mover.dram.pinned_bytes != kept or mover.disk.table.pinned_bytes:
            raise IntegrityError("pages are pinned although no load is in flight")
        if mover.staging.used_bytes:
            raise IntegrityError(
                f"{mover.staging.used_bytes} bytes of staging are held although nothing moves"
            )
    elif mover.disk.table.pinned_bytes:
        raise IntegrityError("files are pinned although no transfer is pending")


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
