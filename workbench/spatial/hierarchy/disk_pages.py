"""Which pages lie where in a tier's file: index, table and free space, kept in step.

room found ──► blocks written ──► entry written: there ──► entry cleared ──► blocks free
                                                           (limbo until then)
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.spatial.hierarchy.aligned import ALIGN
from workbench.spatial.hierarchy.direct_io import FileIo
from workbench.spatial.hierarchy.disk_layout import place
from workbench.spatial.hierarchy.disk_open import Found, read_pages
from workbench.spatial.hierarchy.disk_record import Placed
from workbench.spatial.hierarchy.disk_space import DiskSpace, target_blocks
from workbench.spatial.hierarchy.disk_table import DiskTable
from workbench.spatial.hierarchy.extents import Run
from workbench.spatial.hierarchy.io_errors import fault_reason
from workbench.spatial.hierarchy.medium import PageRecord


@dataclass(slots=True)
class Kept:
    """A page of the index: where it lies, its entry of the table, and its last use."""

    placed: Placed
    entry: int
    used: int


class DiskPages:
    """Pages of an open file under a cap; OSError where the file cannot be filled up to it.

    `found_again`: take over what an earlier process left in it.
    """

    def __init__(
        self, file: int, io: FileIo, capacity_bytes: int, layout: str, found_again: bool
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.layout = layout
        self._file, self._io = file, io
        self._index: dict[bytes, Kept] = {}
        self._limbo: list[Run] = []  # of removed pages, until their entries are cleared on the file
        self._generation = self._clock = 0
        self._table = DiskTable(io)
        size = os.fstat(file).st_size
        found = read_pages(io, self._table, size) if found_again else Found()
        if not found.chunks or not self._take_over(found):
            os.ftruncate(file, 0)
            self._table = DiskTable(io)
            self._index.clear()
            self._space = DiskSpace(file, [])
            self._fit()
            self._space.free.take(1)  # block 0, the superblock's
            self._grow_table()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def real_bytes(self) -> int:
        """Bytes that pages take, counted by the file's free space."""
        own = 1 + sum(count for _, count in self._table.chunks)
        limbo = sum(count for _, count in self._limbo)
        return (self._space.used_blocks - own - limbo) * ALIGN

    @property
    def file_bytes(self) -> int:
        """What the file takes on its disk (st_blocks * 512), free blocks and all."""
        return self._space.file_bytes

    def find(self, key: bytes) -> Placed | None:
        """Where a page lies."""
        kept = self._index.get(key)
        return kept.placed if kept is not None else None

    def touch(self, key: bytes) -> None:
        """A page is read: it is the last used."""
        kept = self._index[key]
        self._clock += 1
        kept.used = self._clock
        self._table.touch(kept.entry, kept.used)

    def scan(self) -> Iterator[Placed]:
        """All pages, oldest use first."""
        for kept in sorted(self._index.values(), key=lambda kept: kept.used):
            yield kept.placed

    def make_entries(self, count: int) -> int:
        """Have entries for so many new pages; how many there is room for."""
        while self._table.room < count and self._grow_table():
            pass  # twice as many entries now
        return self._table.room

    def find_room(self, record: PageRecord) -> Placed | None:
        """Blocks for a page, until it is published or given up."""
        found = place(self._space.free, record, self._space.end_blocks, self.layout)
        if found is None:
            return None
        self._generation += 1
        return Placed(record, self._generation, tuple(found))

    def give_up(self, placed: Placed) -> None:
        """Free blocks that were found and not written."""
        for run in placed.runs:
            self._space.free.add(*run)

    def publish(self, pages: list[Placed]) -> str:
        """Write the entries of pages whose blocks are written, and clear those they replace."""
        for placed in pages:
            old = self._index.get(placed.record.key)
            self._clock += 1
            entry = self._table.set(placed, self._clock)
            self._index[placed.record.key] = Kept(placed, entry, self._clock)
            if old is not None:
                self._forget(old)
        reason = self._settle() if pages else ""
        if reason:
            for placed in pages:
                kept = self._index.get(placed.record.key)
                if kept is not None and kept.placed is placed:
                    self._forget(self._index.pop(placed.record.key))
        return reason

    def remove(self, keys: Sequence[bytes]) -> str:
        """Clear the entries of pages; their blocks are free once that is on the file."""
        gone = [self._index.pop(key) for key in dict.fromkeys(keys) if key in self._index]
        for kept in gone:
            self._forget(kept)
        return self._settle() if gone else ""

    def resize(self, capacity_bytes: int) -> bool:
        """Take a new cap; False where the disk has no room for a larger one: the old one stays."""
        before, self.capacity_bytes = self.capacity_bytes, capacity_bytes
        try:
            return self._fit()
        except OSError:
            self.capacity_bytes = before
            with contextlib.suppress(OSError):  # what it has grown meanwhile is above no cap
                self._fit()
            return False

    def flush(self) -> None:
        """Write the order of use too, for a later process."""
        self._table.flush(everything=True)
        os.fdatasync(self._file)

    def check(self) -> None:
        """Raise ValueError if index, free space and file disagree (I1, I10)."""
        self._space.free.check()
        blocks = sum(kept.placed.num_blocks for kept in self._index.values())
        if blocks * ALIGN != self.real_bytes:
            raise ValueError(f"pages take {blocks * ALIGN} bytes but {self.real_bytes} are counted")
        if self._space.used_blocks <= target_blocks(self.capacity_bytes) and (
            self.file_bytes > self.capacity_bytes
        ):
            raise ValueError(f"the file takes {self.file_bytes} bytes of {self.capacity_bytes}")

    def _take_over(self, found: Found) -> bool:
        """Index the pages that are there, without the oldest if they take more than the cap."""
        for placed, entry, used in sorted(found.pages, key=lambda page: page[2]):
            self._index[placed.record.key] = Kept(placed, entry, used)
            self._generation = max(self._generation, placed.generation)
            self._clock = used
        runs = [run for kept in self._index.values() for run in kept.placed.runs]
        self._space = DiskSpace(self._file, [(0, 1), *found.chunks, *runs])
        self._table.keep_only({kept.entry for kept in self._index.values()})
        excess = self._space.used_blocks - target_blocks(self.capacity_bytes)
        oldest = []
        for key, kept in self._index.items():
            if excess > 0:
                oldest.append(key)
                excess -= kept.placed.num_blocks
        self.remove(oldest)
        return self._fit()

    def _fit(self) -> bool:
        return self._space.fit(target_blocks(self.capacity_bytes), self.capacity_bytes)

    def _grow_table(self) -> bool:
        return self._table.grow(self._space.free, target_blocks(self.capacity_bytes))

    def _forget(self, kept: Kept) -> None:
        self._table.clear(kept.entry)
        self._limbo += kept.placed.runs

    def _settle(self) -> str:
        """Write the table; then the blocks of removed pages are free, and holes under a cap that
        has become smaller."""
        reason = self._table.flush()
        if reason:
            return reason
        for run in self._limbo:
            self._space.free.add(*run)
        self._limbo.clear()
        if not self._space.fits(target_blocks(self.capacity_bytes), self.capacity_bytes):
            try:
                self._fit()
            except OSError as error:
                return fault_reason(error)
        return ""
