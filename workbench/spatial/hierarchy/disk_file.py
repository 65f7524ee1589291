"""The local disk (G3): pages in one preallocated file, written past the page cache in batches.

    | superblock | table | header, payload | header, payload | free ...      | free  |
                              written first, then the table's entry: only now is the page there

Layout and crash safety: `disk_record.py`. Placement: `extents.py`, `disk_space.py`. I/O:
`direct_io.py`. One file and io_uring as in FlexKV and Mooncake; the cap on real bytes is ours.
"""

import os
from collections.abc import Iterator, Sequence

import numpy as np

from workbench.errors import TierError
from workbench.spatial.hierarchy.aligned import ALIGN, Bounce
from workbench.spatial.hierarchy.direct_io import DiskWays, FileIo
from workbench.spatial.hierarchy.disk_folder import DiskFolder
from workbench.spatial.hierarchy.disk_open import open_file, refuse
from workbench.spatial.hierarchy.disk_pages import DiskPages
from workbench.spatial.hierarchy.disk_record import Placed, page_blocks
from workbench.spatial.hierarchy.disk_slices import DiskSlices
from workbench.spatial.hierarchy.disk_space import (
    SMALLEST_PAGE_BLOCKS,
    least_capacity_bytes,
    usable_bytes,
)
from workbench.spatial.hierarchy.disk_transfers import DiskTransfers, Write
from workbench.spatial.hierarchy.disk_transports import SwitchedIo, open_io
from workbench.spatial.hierarchy.extents import Run
from workbench.spatial.hierarchy.io_counts import IoCounts
from workbench.spatial.hierarchy.medium import (
    Done,
    Get,
    MediumFault,
    PageRecord,
    Put,
    SliceReader,
)
from workbench.spatial.hierarchy.pulled_file import PulledFile

LEAST_CAPACITY_BYTES = least_capacity_bytes(SMALLEST_PAGE_BLOCKS * ALIGN)


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
        self.persistent = self._folder.keep
        self.place = self._folder.file_path
        self._transport = ways.transport
        self._next: tuple[str, FileIo] | None = None
        self._closed = False
        self._pulled: PulledFile | None = None
        self._room_bytes = 0  # the cap before it was filled up
        try:
            self._file, self._direct = open_file(self.place, ways.direct)
            self._io = SwitchedIo(open_io(self._file, ways))
            self._transfers = DiskTransfers(self._io)
            self._pages = DiskPages(
                self._file, self._io, capacity_bytes, ways.layout, self.persistent
            )
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
    def capacity_bytes(self) -> int:
        """Cap on the file's real bytes."""
        return self._pages.capacity_bytes

    @property
    def layout(self) -> str:
        """How new pages are laid."""
        return self._pages.layout

    @property
    def usable_bytes(self) -> int:
        """The sum of `charge_bytes` that always fits under the cap."""
        return usable_bytes(self.capacity_bytes)

    @property
    def real_bytes(self) -> int:
        """Bytes that our pages take on the medium now, counted by its free space."""
        return self._pages.real_bytes

    @property
    def file_bytes(self) -> int:
        """What the file takes on its disk (st_blocks * 512), free blocks and all."""
        return self._pages.file_bytes

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
        room = self._pages.make_entries(len(puts))

        def placing() -> Iterator[Write]:
            for number, put in enumerate(puts):
                fits = room > len(writes)
                placed = self._pages.find_room(put.record) if fits else None
                if placed is not None:
                    writes.append((number, placed))
                    yield placed, put.payload

        failed = self._transfers.write(placing(), in_order=self.layout == "block_first")
        reason = self._pages.publish(
            [page for row, (_, page) in enumerate(writes) if row not in failed]
        )
        for row, (number, placed) in enumerate(writes):
            if row in failed:
                self._pages.give_up(placed)
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
            placed = self._pages.find(get.record.key)
            if placed is None or placed.record != get.record:
                done[number] = Done("gone")
            elif get.out.nbytes:
                self._pages.touch(get.record.key)
                reads.append((number, placed))
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
        found = [self._pages.find(record.key) for record in records]
        placed = [page for page in found if page is not None]
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
        return [Done(self._pages.remove(keys))] * len(keys)

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """The record of each key that is there."""
        found = (self._pages.find(key) for key in keys)
        return [page.record if page is not None else None for page in found]

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Whole pages with their real bytes, oldest use first."""
        for placed in self._pages.scan():
            yield placed.record, placed.num_blocks * ALIGN

    def resize(self, capacity_bytes: int) -> bool:
        """Take a new cap; False where that could not be done, and the file has to be opened anew.

        Where the disk has no room for a larger one, the old cap stays. A cap below what pages take
        holds as soon as enough of them are removed.
        """
        return capacity_bytes >= LEAST_CAPACITY_BYTES and self._pages.resize(capacity_bytes)

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
        self._pages.layout, self._io.coalesce = layout, coalesce

    @property
    def can_unplug(self) -> bool:
        """kvikio has the file open by itself."""
        return self._transport != "kvikio"

    def unplug(self) -> None:
        """Let every read and write fail. OSError where the system does not let us."""
        self._pulled = PulledFile(self._file)

    def plug_in(self) -> None:
        """Read and write the file again."""
        if self._pulled is not None:
            self._pulled.give_back()
            self._pulled = None

    can_fill = True

    def fill_up(self) -> None:
        """Give all free blocks back to the file system, and those that become free, too."""
        self._room_bytes = self.capacity_bytes
        self._pages.resize(0)

    def make_room(self) -> None:
        """Take the blocks back; what others have taken meanwhile stays theirs."""
        self._pages.resize(self._room_bytes)

    def runs_of(self, key: bytes) -> tuple[Run, ...]:
        """Where a page lies, in blocks of 4096 bytes, its header first; KeyError if it does not."""
        placed = self._pages.find(key)
        if placed is None:
            raise KeyError(key)
        return placed.runs

    def check(self) -> None:
        """Raise ValueError if index, free space and file disagree (I1, I10)."""
        self._pages.check()

    def close(self, keep: bool) -> None:
        """Let the file go: it stays, with the order of use, if `persistent` and `keep`."""
        if self._closed:
            return
        if self.persistent and keep:
            self._pages.flush()
        self._let_go(keep)

    def _let_go(self, keep: bool) -> None:
        self._closed = True
        if hasattr(self, "_io"):
            self._io.close()
        if hasattr(self, "_file"):
            os.close(self._file)
        self._folder.close(keep)
