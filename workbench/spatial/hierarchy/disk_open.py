"""Opening a tier's file: which files are refused, and what an earlier process left in it."""

import errno
import os
import stat
from dataclasses import dataclass, field

import numpy as np

from workbench.errors import TierError
from workbench.spatial.hierarchy.aligned import ALIGN, aligned_empty
from workbench.spatial.hierarchy.direct_io import FileIo, Piece
from workbench.spatial.hierarchy.disk_record import (
    Placed,
    decode_header,
    decode_superblock,
    is_ours,
    is_whole,
)
from workbench.spatial.hierarchy.disk_table import DiskTable
from workbench.spatial.hierarchy.extents import Run

HEADERS_AT_ONCE = 1024
MEMORY = ("tmpfs", "ramfs")


@dataclass(slots=True)
class Found:
    """What lies in a file: the table's runs, and whole pages with their entry and last use."""

    chunks: list[Run] = field(default_factory=list)
    pages: list[tuple[Placed, int, int]] = field(default_factory=list)


def open_file(path: str, direct: bool) -> tuple[int, bool]:
    """Open or create a tier's file; returns its descriptor, and whether the page cache is passed.

    A file system in memory has nothing to pass. Raises OSError, and TierError for what is no file
    of ours: a link, a folder, another user's, or a file with a stranger's content.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    direct = direct and file_system(os.path.dirname(path)) not in MEMORY
    try:
        try:
            file = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            file, direct = os.open(path, flags, 0o600), False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _stranger(path) from None
        raise
    try:
        info = os.fstat(file)
        head = aligned_empty(ALIGN)
        head[:] = 0
        if stat.S_ISREG(info.st_mode):
            os.preadv(file, [memoryview(head)], 0)  # type: ignore[arg-type]
        ours = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_nlink == 1
        if not ours or not is_ours(head.tobytes()):
            raise _stranger(path)
    except BaseException:
        os.close(file)
        raise
    return file, direct


def _stranger(path: str) -> TierError:
    return TierError(
        f"{path!r} is not the file of a disk tier of yours, but a link, a folder or another's file:"
        " move it away, or give tiers.disk_path another folder"
    )


def refuse(path: str, capacity_bytes: int, error: OSError | TierError) -> TierError:
    """The sentence for a file that cannot be created or filled."""
    if isinstance(error, TierError):
        return error
    wanted = f"{capacity_bytes / 2**20:g} MiB"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        info = os.statvfs(os.path.dirname(path))
        free = info.f_bavail * info.f_frsize // 2**20
        return TierError(
            f"the disk has no room for {path!r} of {wanted} ({free} MiB are free): choose a "
            "smaller tiers.disk_mib, or a tiers.disk_path on another disk"
        )
    if error.errno == errno.EFBIG:
        return TierError(
            f"no file may be as large as {path!r} of {wanted}: choose a smaller tiers.disk_mib"
        )
    return TierError(
        f"the disk tier cannot write to {path!r} ({error.strerror}): give tiers.disk_path a folder "
        "you may write to"
    )


def file_system(folder: str) -> str:
    """Type of the file system a folder lies on, empty where the system does not tell."""
    best, kind = "", ""
    folder = os.path.realpath(folder)
    try:
        with open("/proc/mounts", encoding="utf-8") as mounts:
            for line in mounts:
                _, place, this, *_ = line.split()
                place = place.replace("\\040", " ")
                inside = folder == place or folder.startswith(place.rstrip("/") + "/")
                if inside and len(place) >= len(best):
                    best, kind = place, this
    except OSError:  # outside Linux there is no such file
        return ""
    return kind


def read_pages(io: FileIo, table: DiskTable, file_bytes: int) -> Found:
    """Find what an earlier process left; nothing where the file is not of this version, or torn.

    Two headers that claim one key or one block cannot both be right: the newer one counts.
    """
    head = aligned_empty(ALIGN)
    piece = Piece(0, memoryview(head), 0)  # type: ignore[arg-type]
    if file_bytes < ALIGN or io.run([piece], write=False):
        return Found()
    chunks, blocks = decode_superblock(head.tobytes()), file_bytes // ALIGN
    if not chunks or any(not start > 0 < count <= blocks - start for start, count in chunks):
        return Found()
    claimed = np.zeros(blocks, dtype=bool)
    claimed[0] = True
    for start, count in chunks:
        if claimed[start : start + count].any():
            return Found()
        claimed[start : start + count] = True
    if not table.load(chunks):
        return Found()
    found = Found(chunks)
    keys: set[bytes] = set()
    whole = _whole_pages(io, table.entries, blocks)
    for placed, entry, used in sorted(whole, key=lambda page: -page[0].generation):
        free = not any(claimed[start : start + count].any() for start, count in placed.runs)
        if free and placed.record.key not in keys:
            keys.add(placed.record.key)
            for start, count in placed.runs:
                claimed[start : start + count] = True
            found.pages.append((placed, entry, used))
    return found


def _whole_pages(io: FileIo, entries: np.ndarray, blocks: int) -> list[tuple[Placed, int, int]]:
    numbers = np.flatnonzero((entries["block"] != 0) & (entries["block"] < blocks))
    headers = aligned_empty(min(len(numbers), HEADERS_AT_ONCE) * ALIGN)
    pages = []
    for first in range(0, len(numbers), HEADERS_AT_ONCE):
        batch = numbers[first : first + HEADERS_AT_ONCE]
        failed = io.run(_header_pieces(headers, entries["block"][batch]), write=False)
        for row, number in enumerate(batch):
            block, check, used = (int(value) for value in entries[number])
            placed = decode_header(headers[row * ALIGN : (row + 1) * ALIGN].tobytes())
            if placed and row not in failed and is_whole(placed, block, check, blocks):
                pages.append((placed, int(number), used))
    return pages


def _header_pieces(headers: np.ndarray, blocks: np.ndarray) -> list[Piece]:
    return [
        Piece(int(block) * ALIGN, memoryview(headers[row * ALIGN : (row + 1) * ALIGN]), row)  # type: ignore[arg-type]
        for row, block in enumerate(blocks)
    ]
