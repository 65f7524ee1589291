"""Live change of the tiers: everything that can fail happens before anything changes."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.clock import Clock
from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy.disk_folder import DiskFolder
from workbench.spatial.hierarchy.disk_tier import DiskTier
from workbench.spatial.hierarchy.host_memory import MIN_STAGING_BYTES
from workbench.spatial.hierarchy.mover import G2, G3, Mover

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.hierarchy import Hierarchy

MIB = 1024 * 1024
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
    num_evicted_disk: int = 0
    num_pinned_kept: int = 0  # entries over the cap that a load still holds
    seconds: float = 0.0


def reconfigure(hierarchy: "Hierarchy", settings: TierSettings) -> ConfigureReport:
    """Apply settings; TierError leaves everything as it was."""
    mover, clock = hierarchy.mover, hierarchy.mover.clock
    start_s = clock.now_s()
    before = (mover.dram.capacity_bytes, mover.disk.table.capacity_bytes)
    dram_bytes, disk_bytes = int(settings.dram_mib * MIB), int(settings.disk_mib * MIB)
    _check_sizes(hierarchy.page_bytes_hint, dram_bytes, disk_bytes, settings)
    moved = not mover.disk.on or _other_path(mover.disk, settings.disk_path)
    folder = DiskFolder(settings.disk_path) if disk_bytes and moved else None

    mover.set_throttle(G2, settings.dram_throttle_mb_s)
    mover.set_throttle(G3, settings.disk_throttle_mb_s)
    num_evicted_disk = 0
    if mover.disk.on and (moved or not disk_bytes):
        num_evicted_disk += len(mover.disk.table)
        mover.close_disk()
    if folder is not None:
        _open_disk(mover, DiskTier(folder, disk_bytes, mover.io), clock)
    elif mover.disk.on:
        num_evicted_disk += _resize_disk(mover, disk_bytes)
    mover.disk.codec = hierarchy.make_codec(settings.disk_codec)
    staging_bytes = max(MIN_STAGING_BYTES, 8 * hierarchy.page_bytes_hint) if disk_bytes else 0
    mover.staging.capacity_bytes = staging_bytes
    mover.memory.set_limit(dram_bytes + staging_bytes)
    num_evicted, num_demoted = _resize_dram(mover, dram_bytes)
    over = mover.dram.used_bytes > dram_bytes
    return ConfigureReport(
        before[0],
        dram_bytes,
        before[1],
        disk_bytes,
        num_evicted,
        num_demoted,
        num_evicted_disk,
        sum(entry.pins > 0 for entry in mover.dram.all_entries()) if over else 0,
        clock.now_s() - start_s,
    )


def _check_sizes(hint: int, dram_bytes: int, disk_bytes: int, settings: TierSettings) -> None:
    disk_page = DiskTier.closed().charge(hint, 1)
    for name, given, size, least, what in (
        ("dram_mib", settings.dram_mib, dram_bytes, hint, "DRAM"),
        ("disk_mib", settings.disk_mib, disk_bytes, disk_page, "the disk tier"),
    ):
        if given > 0 and size < least:
            raise TierError(
                f"tiers.{name} = {given} MiB holds no page of {hint} bytes: give at least "
                f"{-(-least * 1000 // MIB) / 1000:.3f}, or 0 to switch {what} off"
            )


def _other_path(disk: DiskTier, path: str) -> bool:
    if disk.folder is None:
        return True
    old = disk.folder.user_path
    if not old or not path:
        return old != path
    return os.path.realpath(os.path.expanduser(old)) != os.path.realpath(os.path.expanduser(path))


def _open_disk(mover: Mover, disk: DiskTier, clock: Clock) -> None:
    mover.disk = disk
    counters = mover.counters[G3]
    counters.reopened()
    disk.probe(clock, counters.load_fit, counters.store_fit)


def _resize_disk(mover: Mover, disk_bytes: int) -> int:
    evicted = 0
    table = mover.disk.table
    if disk_bytes < table.used_bytes:
        _settle(mover)
        for entry in table.all_entries():
            if table.used_bytes <= disk_bytes:
                break
            mover.evict_disk(entry)
            evicted += 1
    mover.disk.set_capacity(disk_bytes)
    return evicted


def _resize_dram(mover: Mover, dram_bytes: int) -> tuple[int, int]:
    mover.dram.capacity_bytes = dram_bytes
    evicted, demoted = mover.trim_dram()
    if dram_bytes == 0:
        for entry in mover.dram.all_entries():  # pinned ones stay until a load lets them go
            mover.dram.remove(entry)
            evicted += 1
    return evicted, demoted


def _settle(mover: Mover) -> None:
    mover.io.wait_idle(IO_TIMEOUT_S)
    mover.advance()
