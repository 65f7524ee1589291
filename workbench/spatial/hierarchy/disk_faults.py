"""Real damage to a tier's file, for tests and `workbench check`: through the file's own path.

Nothing here fakes a result: bits are flipped, blocks are punched out and the file is cut on the
disk, behind the back of the process that has it open.
"""

import contextlib
import os
from collections.abc import Iterator

from workbench.spatial.hierarchy.aligned import ALIGN
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.disk_space import punch


def payload_place(disk: DiskFile, key: bytes, offset: int) -> int:
    """Where byte `offset` of a page's payload lies in the file (KeyError, IndexError)."""
    block = 1 + offset // ALIGN
    for start, count in disk.runs_of(key):
        if block < count:
            return (start + block) * ALIGN + offset % ALIGN
        block -= count
    raise IndexError(f"offset {offset}: behind the page's last block")


def flip_payload_bit(disk: DiskFile, key: bytes, offset: int, bit: int) -> None:
    """Flip one bit (0..7) of byte `offset` of a page's payload."""
    flip_bit(disk.place, payload_place(disk, key, offset), bit)


def flip_header_bit(disk: DiskFile, key: bytes, offset: int, bit: int) -> None:
    """Flip one bit (0..7) of byte `offset` of a page's header block."""
    flip_bit(disk.place, disk.runs_of(key)[0][0] * ALIGN + offset, bit)


def flip_bit(path: str, place: int, bit: int) -> None:
    """Flip one bit (0..7) of the byte at `place` of a file."""
    with _opened(path) as file:
        byte = os.pread(file, 1, place)
        os.pwrite(file, bytes([byte[0] ^ (1 << bit)]), place)
        os.fsync(file)


def overwrite_page(disk: DiskFile, key: bytes) -> None:
    """Put a stranger's bytes over a page's header and the start of its payload."""
    with _opened(disk.place) as file:
        start, _ = disk.runs_of(key)[0]
        os.pwrite(file, b"not a page of ours".ljust(ALIGN + 64, b"!"), start * ALIGN)
        os.fsync(file)


def punch_page(disk: DiskFile, key: bytes) -> None:
    """Turn the blocks of a page's payload into holes, which read as zeros."""
    with _opened(disk.place) as file:
        for number, (start, count) in enumerate(disk.runs_of(key)):
            first = start + (number == 0)
            if start + count > first:
                punch(file, first, start + count - first)


def cut_file(disk: DiskFile, num_bytes: int) -> None:
    """Cut the file to so many bytes."""
    os.truncate(disk.place, num_bytes)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield file
    finally:
        os.close(file)
