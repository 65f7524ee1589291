"""Real faults for tests and `workbench check`: they damage real bytes, in DRAM and on disk.

Nothing here fakes a result: bits are flipped in the disk tier's file, blocks are punched out of it
or overwritten, the file is cut, and a byte of a DRAM page is flipped in place.
"""

import contextlib
from dataclasses import dataclass

import numpy as np

from workbench.cache.keys import TierKey
from workbench.spatial.hierarchy import disk_faults
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.spatial.hierarchy.medium import encode_key

FAULTS = (
    "corrupt_dram",
    "corrupt_disk",
    "foreign_disk",
    "punch_disk",
    "cut_disk",
)


@dataclass(frozen=True)
class InjectedFault:
    """What was damaged: the kind, and the key."""

    kind: str
    key: TierKey


def inject(hierarchy: Hierarchy, kind: str, rng: np.random.Generator) -> InjectedFault | None:
    """Damage one random entry; None if nothing can be damaged now.

    `kind`: one of FAULTS (ValueError otherwise). Pinned pages are left alone: a reader owns them.
    """
    if kind not in FAULTS:
        raise ValueError(f"unknown fault {kind!r}: choose one of {', '.join(FAULTS)}")
    mover = hierarchy.mover
    disk = mover.ladder.tiers[0]
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
    elif isinstance(disk.medium, DiskFile):
        with contextlib.suppress(OSError, KeyError, IndexError):  # an earlier fault damaged it
            _damage(disk.medium, entry, kind, rng)
    return InjectedFault(kind, entry.key)


def _damage(disk: DiskFile, entry: Entry, kind: str, rng: np.random.Generator) -> None:
    key, record = encode_key(entry.key), entry.record
    size = record.payload_bytes if record is not None else entry.page_bytes
    if kind == "corrupt_disk":
        disk_faults.flip_payload_bit(disk, key, int(rng.integers(size)), int(rng.integers(8)))
    elif kind == "foreign_disk":
        disk_faults.overwrite_page(disk, key)
    elif kind == "punch_disk":
        disk_faults.punch_page(disk, key)
    else:
        disk_faults.cut_file(disk, disk_faults.payload_place(disk, key, int(rng.integers(size))))
