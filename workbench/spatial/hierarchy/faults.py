"""Real faults for tests and `workbench check`: they damage real bytes, files and writes.

Nothing here fakes a result: files are truncated, deleted, made unreadable or flipped on the disk,
a byte of a DRAM page is flipped in place, and a write is sent to a device that is full.
"""

import contextlib
import os
from dataclasses import dataclass

import numpy as np

from workbench.cache.keys import TierKey
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.folder_medium import FolderMedium
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.spatial.hierarchy.medium import encode_key

FAULTS = (
    "corrupt_dram",
    "corrupt_disk",
    "truncate_disk",
    "delete_disk",
    "unreadable_disk",
    "foreign_disk",
    "enospc",
)


@dataclass(frozen=True)
class InjectedFault:
    """What was damaged: the kind, and the key (None for `enospc`: it meets a later write)."""

    kind: str
    key: TierKey | None


def inject(hierarchy: Hierarchy, kind: str, rng: np.random.Generator) -> InjectedFault | None:
    """Damage one random entry, or the next write; None if nothing can be damaged now.

    `kind`: one of FAULTS (ValueError otherwise). Pinned pages are left alone: a reader owns them.
    """
    if kind not in FAULTS:
        raise ValueError(f"unknown fault {kind!r}: choose one of {', '.join(FAULTS)}")
    mover = hierarchy.mover
    disk = mover.ladder.tiers[0]
    if kind == "enospc":
        if not isinstance(disk.medium, FolderMedium):
            return None
        disk.medium.write_to = "/dev/full"
        return InjectedFault(kind, None)
    table = mover.dram if kind == "corrupt_dram" else disk.table
    healthy = [
        entry for entry in table.all_entries() if entry.state is State.READY and entry.pins == 0
    ]
    if not healthy:
        return None
    entry = healthy[int(rng.integers(len(healthy)))]
    if kind == "corrupt_dram":
        assert entry.buffer is not None
        entry.buffer[int(rng.integers(entry.page_bytes))] ^= np.uint8(1 << int(rng.integers(8)))
    else:
        with contextlib.suppress(OSError):  # an earlier fault has damaged it already
            _damage(hierarchy, entry, kind, rng)
    return InjectedFault(kind, entry.key)


def _damage(hierarchy: Hierarchy, entry: Entry, kind: str, rng: np.random.Generator) -> None:
    medium = hierarchy.mover.ladder.tiers[0].medium
    if not isinstance(medium, FolderMedium):
        return
    path = medium.file_path(encode_key(entry.key))
    if kind == "delete_disk":
        os.unlink(path)
    elif kind == "unreadable_disk":
        _make_unreadable(path)
    else:
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if kind == "truncate_disk":
                file.truncate(int(rng.integers(size)) if size else 0)
            elif kind == "foreign_disk":
                file.write(b"not a page of ours")
            elif size:
                at = size - 1 - int(rng.integers(min(entry.page_bytes, size)))
                file.seek(at)
                old = file.read(1)[0]
                file.seek(at)
                file.write(bytes([old ^ (1 << int(rng.integers(8)))]))


def _make_unreadable(path: str) -> None:
    if os.geteuid() != 0:
        os.chmod(path, 0)
        return
    os.unlink(path)  # root reads everything, but a link to itself cannot be opened by anyone
    os.symlink(path, path)
