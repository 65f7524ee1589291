"""Which medium each slow tier lies on, as the settings have it, and how one is opened."""

import os
from collections.abc import Callable

from workbench.config import TierSettings
from workbench.errors import TierError
from workbench.spatial.hierarchy.disk_folder import DiskFolder
from workbench.spatial.hierarchy.folder_medium import FolderMedium
from workbench.spatial.hierarchy.ladder import G3
from workbench.spatial.hierarchy.medium import Medium, MediumFault
from workbench.spatial.hierarchy.slow_tier import Place

MIB = 1024 * 1024


def capacity_bytes(name: str, settings: TierSettings) -> int:
    """Bytes a slow tier may take; 0 where it is switched off."""
    if name == G3:
        return int(settings.disk_mib * MIB)
    return 0


def place_of(name: str, settings: TierSettings) -> Place | None:
    """Where a slow tier's pages lie; equal places are one medium. None where it is off."""
    if not capacity_bytes(name, settings):
        return None
    return Place("disk", _real_path(settings.disk_path))


def throttle_mb_s(name: str, settings: TierSettings) -> float:
    """A slow tier's throttle, 0 for none."""
    return settings.disk_throttle_mb_s if name == G3 else 0.0


def open_medium(name: str, settings: TierSettings) -> Medium:
    """Open a slow tier's medium; TierError says in one sentence why it cannot be."""
    openers: dict[str, Callable[[], Medium]] = {
        G3: lambda: FolderMedium(DiskFolder(settings.disk_path), capacity_bytes(G3, settings)),
    }
    try:
        return openers[name]()
    except MediumFault as fault:
        raise TierError(f"{name} cannot be opened: {fault}") from None


def _real_path(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path)) if path else ""
