"""The blocks of a tier's file under its cap: allocated ones, free or used, and holes.

    |s| page | free |  hole  | page | free |                  real bytes = all but the holes
                                           ^ end of the file

The cap is on real bytes (st_blocks * 512). A smaller one punches holes into free runs from the top,
and cuts the file where its end is free: no page moves. A larger one fills the holes again first.
"""

import contextlib
import ctypes
import os

from workbench.spatial.hierarchy.aligned import ALIGN
from workbench.spatial.hierarchy.disk_record import ENTRIES_PER_BLOCK
from workbench.spatial.hierarchy.extents import Extents, Run

_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
SMALLEST_PAGE_BLOCKS = 2  # a header and a block of payload


def target_blocks(capacity_bytes: int) -> int:
    """Blocks of a file under a cap; a 256th is left to the file system's own blocks (ext4 charges
    its extent tree to the file)."""
    return (capacity_bytes - capacity_bytes // 256) // ALIGN


def largest_table_blocks(blocks: int) -> int:
    """Blocks of the table where all pages are as small as can be."""
    return -(-blocks // (SMALLEST_PAGE_BLOCKS * ENTRIES_PER_BLOCK))


def usable_bytes(capacity_bytes: int) -> int:
    """Bytes for pages under a cap: without the superblock and the largest table there can be.

    A 64th stays free, too: with it pages of many sizes, evicted in a random order, lie in 2 runs
    each; in a file that is full to its last block they would lie in 6.
    """
    blocks = target_blocks(capacity_bytes)
    return max(0, blocks - 1 - largest_table_blocks(blocks) - blocks // 64) * ALIGN


def least_capacity_bytes(page_bytes: int) -> int:
    """The smallest cap under which one page fits that takes `page_bytes`, header and all."""
    capacity = page_bytes + 2 * ALIGN
    while usable_bytes(capacity) < page_bytes:
        capacity += ALIGN
    return capacity


class DiskSpace:
    """Free blocks of an open file, and what it takes on its disk.

    `used`: runs that pages hold already, in any order, without overlap. Raises OSError.
    """

    def __init__(self, file: int, used: list[Run]) -> None:
        self.free = Extents()
        self._file = file
        self._holes = Extents()
        info = os.fstat(file)
        self.end_blocks = info.st_size // ALIGN
        whole = info.st_blocks * 512 >= info.st_size
        at = 0
        for start, count in [*sorted(used), (self.end_blocks, 0)]:
            if start > at and whole:
                self.free.add(at, start - at)
            elif start > at:  # some of it is a hole, nobody tells which
                punch(file, at, start - at)
                self._holes.add(at, start - at)
            at = start + count

    @property
    def present_blocks(self) -> int:
        """Blocks that are no holes."""
        return self.end_blocks - self._holes.free_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks that something lies in."""
        return self.present_blocks - self.free.free_blocks

    @property
    def file_bytes(self) -> int:
        """What the file takes on its disk: st_blocks * 512, the file system's own blocks too."""
        return os.fstat(self._file).st_blocks * 512

    def fit(self, target_blocks: int, cap_bytes: int) -> bool:
        """Grow or shrink to `target_blocks` blocks and at most `cap_bytes` real bytes.

        False where used blocks alone are more, so that pages have to go first. Raises OSError where
        the disk has no room, or cannot punch holes; nothing that was free or used is lost then.
        """
        while self.present_blocks < target_blocks:
            self._grow(target_blocks - self.present_blocks)
        while True:
            excess = self._excess(target_blocks, cap_bytes)
            if excess <= 0:
                return True
            run = self.free.take_edge(excess, highest=True)
            if run is None:
                return False
            try:
                self._give_back(run)
            except OSError:
                self.free.add(*run)
                raise

    def fits(self, target_blocks: int, cap_bytes: int) -> bool:
        """Whether the file is within both limits now."""
        return self._excess(target_blocks, cap_bytes) <= 0

    def _excess(self, target_blocks: int, cap_bytes: int) -> int:
        over_bytes = self.file_bytes - cap_bytes
        return max(self.present_blocks - target_blocks, -(-over_bytes // ALIGN))

    def _grow(self, count: int) -> None:
        hole = self._holes.take_edge(count, highest=False)
        start, count = hole or (self.end_blocks, count)
        try:
            os.posix_fallocate(self._file, start * ALIGN, count * ALIGN)
        except OSError:
            if hole is None:
                os.ftruncate(self._file, self.end_blocks * ALIGN)
            else:
                self._holes.add(start, count)
                with contextlib.suppress(OSError):  # what it has filled of the hole, `fit` counts
                    punch(self._file, start, count)
            raise
        self.end_blocks = max(self.end_blocks, start + count)
        self.free.add(start, count)

    def _give_back(self, run: Run) -> None:
        start, count = run
        if start + count < self.end_blocks:
            punch(self._file, start, count)
            self._holes.add(start, count)
        else:
            os.ftruncate(self._file, start * ALIGN)
            self.end_blocks = start


def punch(file: int, start: int, count: int) -> None:
    """Give blocks back to the file system; the file keeps its length. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    offset, length = ctypes.c_int64(start * ALIGN), ctypes.c_int64(count * ALIGN)
    if libc.fallocate(file, _KEEP_SIZE_PUNCH_HOLE, offset, length):
        raise OSError(ctypes.get_errno(), "fallocate")
