"""Which medium each slow tier lies on, as the settings have it, and how one is opened."""

import os

from workbench.clock import Clock
from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy.direct_io import DiskWays
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.disk_space import least_capacity_bytes
from workbench.spatial.hierarchy.ladder import G3, POOL
from workbench.spatial.hierarchy.medium import Medium, MediumFault, PageRecord
from workbench.spatial.hierarchy.mooncake_link import LEAST_BYTES
from workbench.spatial.hierarchy.mooncake_pool import MooncakePool
from workbench.spatial.hierarchy.object_store import ObjectStore
from workbench.spatial.hierarchy.shared_store import SharedStoreClient
from workbench.spatial.hierarchy.slow_tier import Place
from workbench.spatial.hierarchy.valkey_pool import ValkeyPool
from workbench.spatial.hierarchy.valkey_process import MIN_BYTES

MIB = 1024 * 1024
ALIGN = 4096
SIZE_OF = {"G3": "disk_mib", "G3.5": "shared_mib", "G4": "object_mib"}
LEAST_OF_OWN = {"valkey": MIN_BYTES, "mooncake": LEAST_BYTES}
WHAT = {"G3": "the disk tier", "G3.5": "the shared tier", "G4": "the object tier"}


def capacity_bytes(name: str, settings: TierSettings) -> int:
    """Bytes a slow tier may take; 0 where it is switched off."""
    return int(getattr(settings, SIZE_OF[name]) * MIB) if _chosen(name, settings) else 0


def place_of(name: str, settings: TierSettings) -> Place | None:
    """Where a slow tier's pages lie; equal places are one medium. None where it is off."""
    if not capacity_bytes(name, settings):
        return None
    if name == G3:
        return Place("disk", _real_path(settings.disk_path), settings.disk_keep)
    if name == POOL:
        transport = settings.shared_transport if settings.shared == "store" else "direct"
        return Place(settings.shared, settings.shared_address, True, transport)
    return Place("objects", settings.object_url, keep=True)


def throttle_mb_s(name: str, settings: TierSettings) -> float:
    """A slow tier's throttle, 0 for none."""
    return {
        "G3": settings.disk_throttle_mb_s,
        "G3.5": settings.shared_throttle_mb_s,
        "G4": settings.object_throttle_mb_s,
    }[name]


def open_medium(name: str, settings: TierSettings, clock: Clock) -> Medium:
    """Open a slow tier's medium; TierError says in one sentence why it cannot be."""
    size = capacity_bytes(name, settings)
    try:
        if name == G3:  # what is not to be kept is deleted at its closing, and at the next opening
            ways = DiskWays(transport=settings.disk_transport)
            return DiskFile(settings.disk_path, size, keep=bool(settings.disk_path), ways=ways)
        if name == POOL:
            return _open_pool(settings, size)
        return ObjectStore(settings.object_url, size, clock, settings.object_transport)
    except MediumFault as fault:
        raise TierError(f"{WHAT[name]} cannot be opened: {fault}") from None


def prepare(name: str, medium: Medium, settings: TierSettings) -> None:
    """Open what `arrange` will need of a medium that stays; TierError in one sentence if it fails.

    Nothing has changed then.
    """
    try:
        if isinstance(medium, DiskFile):
            medium.prepare(settings.disk_transport)
        if isinstance(medium, ObjectStore):
            medium.prepare(settings.object_transport)
    except MediumFault as fault:
        raise TierError(f"{WHAT[name]} cannot be opened: {fault}") from None


def arrange(medium: Medium, settings: TierSettings) -> None:
    """Let a medium lay and move pages as the settings say; the tier's thread only."""
    if isinstance(medium, DiskFile):
        medium.arrange(settings.disk_layout, settings.disk_coalesce)
    if isinstance(medium, ObjectStore):
        medium.arrange()


def page_budget_bytes(medium: Medium, capacity: int) -> int:
    """Bytes of a cap that pages may take; a file keeps some for its table."""
    return medium.usable_bytes if isinstance(medium, DiskFile) else capacity


def check_sizes(hint: int, dram_bytes: int, settings: TierSettings) -> None:
    """TierError where a tier that is on holds no page of `hint` bytes, or its server needs more."""
    record = PageRecord(bytes(33), hint, (0,), hint)
    least = dict.fromkeys(SIZE_OF, hint + 8192)
    least[G3] = least_capacity_bytes((1 + -(-record.payload_bytes // ALIGN)) * ALIGN)
    sizes = [("dram_mib", settings.dram_mib, dram_bytes, hint, "DRAM")] + [
        (field, getattr(settings, field), capacity_bytes(name, settings), least[name], WHAT[name])
        for name, field in SIZE_OF.items()
        if _chosen(name, settings)
    ]
    for field, given, size, need, what in sizes:
        if given > 0 and size < need:
            raise TierError(
                f"tiers.{field} = {given} MiB holds no page of {hint} bytes: give at least "
                f"{-(-need * 1000 // MIB) / 1000:.3f}, or 0 to switch {what} off"
            )
    needed = LEAST_OF_OWN.get(settings.shared, 0) if not settings.shared_address else 0
    if 0 < settings.shared_mib < needed / MIB:
        raise TierError(
            f"tiers.shared_mib = {settings.shared_mib} MiB is too little for a server of this "
            f"engine's own (tiers.shared = {settings.shared}): give at least {needed // MIB}, or 0 "
            "to switch the shared tier off"
        )


def _chosen(name: str, settings: TierSettings) -> bool:
    """Whether a slow tier has a medium, whatever its size."""
    return {"G3": True, "G3.5": settings.shared != "off", "G4": bool(settings.object_url)}[name]


def _open_pool(settings: TierSettings, size: int) -> Medium:
    if settings.shared == "store":
        transport = settings.shared_transport
        return SharedStoreClient(settings.shared_address, size, transport=transport)
    pools = {"valkey": ValkeyPool, "mooncake": MooncakePool}
    return pools[settings.shared](settings.shared_address, size)


def _real_path(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path)) if path else ""
