"""The table of a tier's file: which block holds the header of a page, and when it was used last."""

import heapq

import numpy as np

from workbench.spatial.hierarchy.aligned import ALIGN, aligned_empty
from workbench.spatial.hierarchy.direct_io import FileIo, Piece
from workbench.spatial.hierarchy.disk_record import (
    ENTRIES_PER_BLOCK,
    ENTRY,
    MAX_CHUNKS,
    Placed,
    encode_superblock,
)
from workbench.spatial.hierarchy.disk_space import largest_table_blocks
from workbench.spatial.hierarchy.extents import Extents, Run

FIRST_SHARE = 4096  # of the file's blocks; enough for pages of 64 KiB


class DiskTable:
    """Entries in memory, written block by block where they changed.

    `chunks`: runs of blocks it lies in on the file; more are added as pages become more.
    """

    def __init__(self, io: FileIo) -> None:
        self.chunks: list[Run] = []
        self._io = io
        self._blocks: list[int] = []  # of the file, in the order of the entries
        self._memory = aligned_empty(0)
        self.entries = self._memory.view(ENTRY)  # all of them, in the file's format
        self._dirty: set[int] = set()
        self._next = 0  # entries from here on were never used
        self._freed: list[int] = []  # a heap: low ones first, so that a batch dirties few blocks

    @property
    def num_blocks(self) -> int:
        """Blocks it takes on the file."""
        return len(self._blocks)

    @property
    def room(self) -> int:
        """Entries that can be set before another chunk is needed."""
        return len(self._freed) + len(self._blocks) * ENTRIES_PER_BLOCK - self._next

    def load(self, chunks: list[Run]) -> bool:
        """Read a table that is there; False if the file ends before it does."""
        self._extend(chunks)
        pieces = [self._piece(at) for at in range(len(self._blocks))]
        failed = self._io.run(pieces, write=False)
        used = np.flatnonzero(self.entries["block"])
        self._next = int(used[-1]) + 1 if len(used) else 0
        self._freed = [int(at) for at in np.flatnonzero(self.entries["block"][: self._next] == 0)]
        return not failed

    def keep_only(self, kept: set[int]) -> None:
        """Empty every entry but these."""
        for at in np.flatnonzero(self.entries["block"]):
            if int(at) not in kept:
                self.clear(int(at))

    def add_chunk(self, chunk: Run) -> str:
        """Lie in one run of blocks more; returns the fault's word if that could not be written."""
        first = len(self._blocks)
        self._extend([chunk])
        self._memory[first * ALIGN :] = 0
        head = aligned_empty(ALIGN)
        head[:] = np.frombuffer(encode_superblock(self.chunks), np.uint8)
        pieces = [self._piece(at) for at in range(first, len(self._blocks))]
        for batch in (pieces, [Piece(0, memoryview(head), 0)]):  # type: ignore[arg-type]
            failed = self._io.run(batch, write=True)
            if failed:
                self.chunks.pop()
                del self._blocks[first:]
                self._memory = self._memory[: first * ALIGN]
                self.entries = self._memory.view(ENTRY)
                return next(iter(failed.values()))
        return ""

    def grow(self, free: Extents, file_blocks: int) -> bool:
        """Take twice the blocks, or as many as there is room for; False if that is none."""
        largest = largest_table_blocks(file_blocks) - self.num_blocks
        count = min(max(1, self.num_blocks, file_blocks // FIRST_SHARE), largest)
        while count > 0 and len(self.chunks) < MAX_CHUNKS:
            chunk = free.take(count)
            if chunk is not None:
                reason = self.add_chunk(chunk[0])
                if reason:
                    free.add(*chunk[0])
                return not reason
            count //= 2
        return False

    def set(self, placed: Placed, used: int) -> int:
        """Name a page's header in a free entry (there must be one); returns the entry's number."""
        if self._freed:
            at = heapq.heappop(self._freed)
        else:
            at, self._next = self._next, self._next + 1
        self.entries[at] = (placed.runs[0][0], placed.generation & 0xFFFFFFFF, used)
        self._dirty.add(at // ENTRIES_PER_BLOCK)
        return at

    def clear(self, at: int) -> None:
        """Empty an entry."""
        self.entries[at] = (0, 0, 0)
        heapq.heappush(self._freed, at)
        self._dirty.add(at // ENTRIES_PER_BLOCK)

    def touch(self, at: int, used: int) -> None:
        """Note a use, which reaches the file with the next change of its block, or at the end."""
        self.entries["used"][at] = used

    def flush(self, everything: bool = False) -> str:
        """Write what changed; returns the fault's word, and keeps what it could not write."""
        blocks = range(len(self._blocks)) if everything else sorted(self._dirty)
        failed = self._io.run([self._piece(at) for at in blocks], write=True)
        self._dirty = set(failed)
        return next(iter(failed.values()), "")

    def _extend(self, chunks: list[Run]) -> None:
        self.chunks += chunks
        self._blocks += [start + at for start, count in chunks for at in range(count)]
        grown = aligned_empty(len(self._blocks) * ALIGN)
        grown[: self._memory.nbytes] = self._memory
        self._memory = grown
        self.entries = grown.view(ENTRY)

    def _piece(self, at: int) -> Piece:
        view = memoryview(self._memory[at * ALIGN : (at + 1) * ALIGN])  # type: ignore[arg-type]
        return Piece(self._blocks[at] * ALIGN, view, at)
