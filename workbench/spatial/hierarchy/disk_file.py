"""The local disk (G3): pages in one preallocated file, written past the page cache in batches.

    | superblock | table | header, payload | header, payload | free ...      | free  |
                              written first, then the table's entry: only now is the page there

Layout and crash safety: `disk_record.py`. Placement: `extents.py`, `disk_space.py`. I/O:
`direct_io.py`. One file and io_uring as in FlexKV and Mooncake; the cap on real bytes is ours.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.errors import TierError
from workbench.spatial.hierarchy.aligned import ALIGN, Bounce
from workbench.spatial.hierarchy.direct_io import DiskWays, FileIo
from workbench.spatial.hierarchy.disk_folder import DiskFolder
from workbench.spatial.hierarchy.disk_layout import place
from workbench.spatial.hierarchy.disk_open import Found, open_file, read_pages, refuse
from workbench.spatial.hierarchy.disk_record import Placed, page_blocks
from workbench.spatial.hierarchy.disk_slices import DiskSlices
from workbench.spatial.hierarchy.disk_space import (
    SMALLEST_PAGE_BLOCKS,
    DiskSpace,
    least_capacity_bytes,
    target_blocks,
    usable_bytes,
)
from workbench.spatial.hierarchy.disk_table import DiskTable
from workbench.spatial.hierarchy.disk_transfers import DiskTransfers, Write
from workbench.spatial.hierarchy.disk_transports import SwitchedIo, open_io
from workbench.spatial.hierarchy.extents import Run
from workbench.spatial.hierarchy.io_counts import IoCounts
from workbench.spatial.hierarchy.io_errors import fault_reason
from workbench.spatial.hierarchy.medium import (
    Done,
    Get,
    MediumFault,
    PageRecord,
    Put,
    SliceReader,
)

LEAST_CAPACITY_BYTES = least_capacity_bytes(SMALLEST_PAGE_BLOCKS * ALIGN)


@dataclass(slots=True)
class _Kept:
    """A page of the index: where it lies, its entry of the table, and its last use."""

    placed: Placed
    entry: int
    used: int


class DiskFile:
    """A `Medium` on local disk.

    `path`: the user's folder, or empty for a private one. `capacity_bytes`: hard cap on the file's
    real bytes. `keep`: whether pages stay for a later process (with a path only). TierError if the
    folder or file cannot be created, locked or filled.
    """

    shared = False

    def __init__(
        self, path: str, capacity_bytes: int, keep: bool = False, ways: DiskWays | None = None
    ) -> None:
        if capacity_bytes < LEAST_CAPACITY_BYTES:
            raise TierError(
                f"a disk tier of {capacity_bytes} bytes holds no page at all: give at least "
                f"{LEAST_CAPACITY_BYTES} bytes"
            )
        ways = ways or DiskWays()
        self._folder = DiskFolder(path, keep)
        self.capacity_bytes = capacity_bytes
        self.persistent = self._folder.keep
        self.place = self._folder.file_path
        self._index: dict[bytes, _Kept] = {}
        self._limbo: list[Run] = []  # of removed pages, until their entries are cleared on the file
        self.layout, self._transport = ways.layout, ways.transport
        self._next: tuple[str, FileIo] | None = None
        self._generation = self._clock = 0
        self._closed = False
        try:
            self._file, self._direct = open_file(self.place, ways.direct)
            self._io = SwitchedIo(open_io(self._file, ways))
            self._transfers = DiskTransfers(self._io)
            self._table = DiskTable(self._io)
            self._start()
        except (OSError, TierError, MediumFault) as error:
            why = error
            if not isinstance(error, MediumFault):
                why = refuse(self.place, capacity_bytes, error)
            self._let_go(keep=not hasattr(self, "_file") or os.fstat(self._file).st_size > 0)
            raise why from None

    @property
    def way(self) -> str:
        """How bytes move, for the screen: `io_uring, O_DIRECT`, `preadv, page cache`, ..."""
        return f"{self._io.way}, {'O_DIRECT' if self._direct else 'page cache'}"

    @property
    def usable_bytes(self) -> int:
        """The sum of `charge_bytes` that always fits under the cap."""
        return usable_bytes(self.capacity_bytes)

    @property
    def real_bytes(self) -> int:
        """Bytes that our pages take on the medium now, counted by its free space."""
        return (self._space.used_blocks - self._own_blocks - self._limbo_blocks) * ALIGN

    @property
    def file_bytes(self) -> int:
        """What the file takes on its disk (st_blocks * 512), free blocks and all."""
        return self._space.file_bytes

    @property
    def counts(self) -> IoCounts:
        """I/Os and bytes since opening."""
        return self._io.counts

    @property
    def bounce(self) -> Bounce:
        """The buffer that unaligned bytes go through, with its counts."""
        return self._transfers.bounce

    def charge_bytes(self, record: PageRecord) -> int:
        """Bytes to reserve for a page before it is put; exactly what it will take."""
        return page_blocks(record) * ALIGN

    def put(self, puts: Sequence[Put]) -> list[Done]:
        """Write pages: their blocks first, then the entries that make them visible.

        Room is found for a page while those before it are on their way.
        """
        done = [Done("over_cap")] * len(puts)
        writes: list[tuple[int, Placed]] = []
        while self._table.room < len(puts) and self._grow_table():
            pass  # twice as many entries now

        def placing() -> Iterator[Write]:
            for number, put in enumerate(puts):
                fits = self._table.room > len(writes)
                placed = self._find_room(put.record) if fits else None
                if placed is not None:
                    writes.append((number, placed))
                    yield placed, put.payload

        failed = self._transfers.write(placing(), in_order=self.layout == "block_first")
        reason = self._publish([page for row, (_, page) in enumerate(writes) if row not in failed])
        for row, (number, placed) in enumerate(writes):
            if row in failed:
                for run in placed.runs:
                    self._space.free.add(*run)
            why = failed.get(row, reason)
            done[number] = Done(why, 0 if why else placed.num_blocks * ALIGN)
        return done

    def get(self, gets: Sequence[Get]) -> list[Done]:
        """Read ranges of payloads; "gone" where no page of that very record is there."""
        done = [Done()] * len(gets)
        reads = []
        for number, get in enumerate(gets):
            if get.offset < 0 or get.offset + get.out.nbytes > get.record.payload_bytes:
                raise ValueError(
                    f"offset {get.offset} and {get.out.nbytes} bytes: a range of the payload, "
                    f"0..{get.record.payload_bytes}"
                )
            kept = self._index.get(get.record.key)
            if kept is None or kept.placed.record != get.record:
                done[number] = Done("gone")
            elif get.out.nbytes:
                self._clock += 1
                kept.used = self._clock
                self._table.touch(kept.entry, kept.used)
                reads.append((number, kept.placed))
        failed = self._transfers.read(
            [(placed, gets[at].offset, gets[at].out) for at, placed in reads]
        )
        for row, reason in failed.items():
            done[reads[row][0]] = Done(reason)
        return done

    def slices(
        self, records: Sequence[PageRecord], outs: Sequence[np.ndarray]
    ) -> SliceReader | None:
        """Reads neighbours' slices by one call each; None where they are no neighbours.

        Another transport than our own takes ranges.
        """
        if self._transport != "direct":
            return None
        kept = [self._index.get(record.key) for record in records]
        placed = [page.placed for page in kept if page is not None]
        if len(placed) != len(records) or [page.record for page in placed] != list(records):
            return None
        try:
            lying = DiskSlices(self._file, placed, outs)
        except ValueError:  # their layout is another: ranges do
            return None

        def read(number: int) -> dict[int, str]:
            num_calls, missing = lying.read(number)
            counts, size = self._io.counts, lying.slice_bytes
            counts.num_reads += num_calls
            counts.read_bytes += (len(outs) - len(missing)) * size
            begin = number * size
            again = [Get(records[at], begin, outs[at][begin : begin + size]) for at in missing]
            dones = zip(missing, self.get(again), strict=True)
            return {at: done.reason for at, done in dones if done.reason}

        return read

    def remove(self, keys: Sequence[bytes]) -> list[Done]:
        """Clear the entries of pages; their blocks are free once that is on the file."""
        gone = [self._index.pop(key) for key in dict.fromkeys(keys) if key in self._index]
        for kept in gone:
            self._forget(kept)
        reason = self._settle() if gone else ""
        return [Done(reason)] * len(keys)

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """The record of each key that is there."""
        kept = (self._index.get(key) for key in keys)
        return [page.placed.record if page is not None else None for page in kept]

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Whole pages with their real bytes, oldest use first."""
        for kept in sorted(self._index.values(), key=lambda kept: kept.used):
            yield kept.placed.record, kept.placed.num_blocks * ALIGN

    def resize(self, capacity_bytes: int) -> bool:
        """Take a new cap; False where that could not be done, and the file has to be opened anew.

        Where the disk has no room for a larger one, the old cap stays. A cap below what pages take
        holds as soon as enough of them are removed.
        """
        if capacity_bytes < LEAST_CAPACITY_BYTES:
            return False
        before, self.capacity_bytes = self.capacity_bytes, capacity_bytes
        try:
            return self._fit()
        except OSError:
            self.capacity_bytes = before
            with contextlib.suppress(OSError):  # what it has grown meanwhile is above no cap
                self._fit()
            return False

    def prepare(self, transport: str) -> None:
        """Open the transport that `arrange` will take; MediumFault where it cannot be had."""
        self._next = None
        if transport != self._transport:
            self._next = transport, open_io(self._file, DiskWays(transport=transport))

    def arrange(self, layout: str, coalesce: bool) -> None:
        """Lay new pages so from now on, gather neighbours' I/Os or not, and move them as prepared.

        Old pages stay.
        """
        if self._next is not None:
            self._transport, io = self._next
            self._io.switch(io)
            self._next = None
        self.layout, self._io.coalesce = layout, coalesce

    def runs_of(self, key: bytes) -> tuple[Run, ...]:
        """Where a page lies, in blocks of 4096 bytes, its header first; KeyError if it does not."""
        return self._index[key].placed.runs

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

    def close(self, keep: bool) -> None:
        """Let the file go: it stays, with the order of use, if `persistent` and `keep`."""
        if self._closed:
            return
        if self.persistent and keep:
            self._table.flush(everything=True)
            os.fdatasync(self._file)
        self._let_go(keep)

    @property
    def _own_blocks(self) -> int:
        return 1 + sum(count for _, count in self._table.chunks)

    @property
    def _limbo_blocks(self) -> int:
        return sum(count for _, count in self._limbo)

    def _let_go(self, keep: bool) -> None:
        self._closed = True
        if hasattr(self, "_io"):
            self._io.close()
        if hasattr(self, "_file"):
            os.close(self._file)
        self._folder.close(keep)

    def _start(self) -> None:
        """Find what is in the file, or begin a new one; then fill it up to the cap."""
        size = os.fstat(self._file).st_size
        found = read_pages(self._io, self._table, size) if self.persistent else Found()
        if not found.chunks or not self._take_over(found):
            os.ftruncate(self._file, 0)
            self._table = DiskTable(self._io)
            self._index.clear()
            self._space = DiskSpace(self._file, [])
            self._fit()
            self._space.free.take(1)  # block 0, the superblock's
            self._grow_table()

    def _take_over(self, found: Found) -> bool:
        """Index the pages that are there, without the oldest if they take more than the cap."""
        for placed, entry, used in sorted(found.pages, key=lambda page: page[2]):
            self._index[placed.record.key] = _Kept(placed, entry, used)
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

    def _find_room(self, record: PageRecord) -> Placed | None:
        found = place(self._space.free, record, self._space.end_blocks, self.layout)
        if found is None:
            return None
        self._generation += 1
        return Placed(record, self._generation, tuple(found))

    def _publish(self, pages: list[Placed]) -> str:
        """Write the entries of pages whose blocks are written, and clear those they replace."""
        for placed in pages:
            old = self._index.get(placed.record.key)
            self._clock += 1
            entry = self._table.set(placed, self._clock)
            self._index[placed.record.key] = _Kept(placed, entry, self._clock)
            if old is not None:
                self._forget(old)
        reason = self._settle() if pages else ""
        if reason:
            for placed in pages:
                kept = self._index.get(placed.record.key)
                if kept is not None and kept.placed is placed:
                    self._forget(self._index.pop(placed.record.key))
        return reason

    def _forget(self, kept: _Kept) -> None:
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
