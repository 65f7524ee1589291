"""Batches of aligned reads and writes on one file: io_uring at depth 32, or one call at a time.

    pieces    [0..12K) a   [12K..24K) b   [40K..52K) c        each with its own buffer
    one I/O   [0..24K) a,b                                     adjacent ones are gathered
    one I/O                               [40K..52K) c

The ring is liburing's (PyPI `liburing`). Its calls hold Python's lock, so waiting is done in
poll() on the ring's descriptor, which lets the engine's thread run, and submissions are small.
"""

import os
import select
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Protocol

from workbench.spatial.hierarchy.aligned import ALIGN
from workbench.spatial.hierarchy.io_counts import IoCounts
from workbench.spatial.hierarchy.io_errors import fault_reason

DEPTH = 32
MAX_IO_BYTES = 1 << 20
MAX_BUFFERS = 1024  # IOV_MAX
SUBMIT_AT_ONCE = 8
SUBMIT_TRIES = 1000


class Piece(NamedTuple):
    """Bytes of one buffer at one place of the file; `owner` is told if it fails."""

    offset: int
    view: memoryview
    owner: int


@dataclass(frozen=True)
class DiskWays:
    """How to move bytes; what the kernel or the file system lacks is left out by itself.

    `ring`: io_uring at `depth`, else one system call an I/O. `direct`: past the page cache.
    `coalesce`: whether pieces that follow each other are gathered. `layout`: see `disk_layout`.
    `transport`: another library in the place of both, as `disk_transports` has it.
    """

    ring: bool = True
    direct: bool = True
    depth: int = DEPTH
    coalesce: bool = True
    layout: str = "block_first"
    transport: str = "direct"


class FileIo(Protocol):
    """What moves pieces between memory and a file; one thread at a time.

    `coalesce`: whether what follows each other is one I/O, where the way knows of that.
    """

    counts: IoCounts
    coalesce: bool

    @property
    def way(self) -> str:
        """How bytes move, for the screen."""

    def run(self, pieces: Iterable[Piece], write: bool) -> dict[int, str]:
        """Move all pieces; returns the fault's word of each owner that failed, and raises none.

        Pieces may come from a generator: what is gathered of them is moving already while the next
        ones are made.
        """

    def close(self) -> None:
        """Give back what was opened beside the file."""


class DirectIo:
    """A `FileIo` by io_uring, or by one system call an I/O."""

    def __init__(self, file: int, ways: DiskWays | None = None) -> None:
        ways = ways or DiskWays()
        self.counts = IoCounts()
        self._file = file
        self.coalesce = ways.coalesce
        self._ring = Ring.open(ways.depth) if ways.ring else None

    @property
    def way(self) -> str:
        """`io_uring` or `preadv`."""
        return "io_uring" if self._ring is not None else "preadv"

    def run(self, pieces: Iterable[Piece], write: bool) -> dict[int, str]:
        """Move all pieces; returns the fault's word of each owner that failed."""
        ios = self._count(gather(pieces) if self.coalesce else ([p] for p in pieces), write)
        if self._ring is not None:
            partial = self._ring.run(self._file, ios, write)
            if self._ring.broken:
                self.close()
        else:
            partial = [io for io in ios if not self._move_all(io, write)]
        return move_singly(self._file, [piece for io in partial for piece in io], write)

    def _count(self, ios: Iterable[list[Piece]], write: bool) -> Iterator[list[Piece]]:
        for io in ios:
            self.counts.count(sum(len(piece.view) for piece in io), write)
            yield io

    def close(self) -> None:
        """Give the ring back."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _move_all(self, io: list[Piece], write: bool) -> bool:
        call = os.pwritev if write else os.preadv
        try:
            moved = call(self._file, [piece.view for piece in io], io[0].offset)
        except OSError:  # told by `move_singly`, which meets it again
            return False
        return moved == sum(len(piece.view) for piece in io)


def move_singly(file: int, pieces: Iterable[Piece], write: bool) -> dict[int, str]:
    """Try again, one by one, what did not move: the fault's word of each owner that fails."""
    failed: dict[int, str] = {}
    for piece in pieces:
        reason = _move(file, piece, write)
        if reason:
            failed.setdefault(piece.owner, reason)
    return failed


def _move(file: int, piece: Piece, write: bool) -> str:
    call = os.pwritev if write else os.preadv
    done = 0
    while done < len(piece.view):
        try:
            moved = call(file, [piece.view[done:]], piece.offset + done)
        except OSError as error:
            return fault_reason(error)
        if moved == 0 or moved % ALIGN:  # the file ends here
            return "disk_full" if write else "truncated"
        done += moved
    return ""


def gather(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces that follow each other in the file as one I/O each, of at most 1 MiB where possible.

    Those that do so by chance, but do not come in order, stay apart: callers sort.
    """
    io: list[Piece] = []
    end = size = -1
    for piece in pieces:
        length = len(piece.view)
        if piece.offset == end and size + length <= MAX_IO_BYTES and len(io) < MAX_BUFFERS:
            io.append(piece)
            size += length
        else:
            if io:
                yield io
            io = [piece]
            size = length
        end = piece.offset + length
    if io:
        yield io


class Ring:
    """An io_uring of `depth` I/Os in flight."""

    def __init__(self, library: ModuleType, depth: int) -> None:
        self.broken = False  # entries lie in its queue that must never be submitted
        self._lib = library
        self._depth = depth
        self._ring = library.Ring()
        library.io_uring_queue_init(depth, self._ring)
        self._cqe = library.Cqe()
        self._poll = select.poll()
        self._poll.register(self._ring.ring_fd, select.POLLIN)

    @classmethod
    def open(cls, depth: int) -> "Ring | None":
        """A ring, or None where the package or the kernel has none (or forbids it)."""
        try:
            import liburing

            return cls(liburing, depth)
        except (ImportError, OSError):
            return None

    def run(self, file: int, ios: Iterable[list[Piece]], write: bool) -> list[list[Piece]]:
        """Move every I/O; returns those that failed or came back short."""
        flying: dict[int, _Flying] = {}
        partial: list[list[Piece]] = []
        number = waiting = waiting_bytes = 0
        try:
            for io in ios:
                if self.broken:
                    partial.append(io)
                    continue
                number += 1
                flying[number] = moving = self._prepare(file, io, number, write)
                waiting, waiting_bytes = waiting + 1, waiting_bytes + moving.num_bytes
                if waiting == SUBMIT_AT_ONCE or waiting_bytes >= MAX_IO_BYTES // 2:
                    self._submit(flying, partial)
                    waiting = waiting_bytes = 0
                while len(flying) == self._depth:
                    self._submit(flying, partial)
                    waiting = waiting_bytes = 0
                    self._reap(flying, partial)
            self._submit(flying, partial)
            while flying:
                self._reap(flying, partial)
        finally:
            if flying:  # interrupted, while the kernel still writes into the caller's buffers
                self._submit(flying, partial)
            while flying:
                self._reap(flying, partial)
        return partial

    def close(self) -> None:
        """Give the ring back to the kernel."""
        self._lib.io_uring_queue_exit(self._ring)

    def _prepare(self, file: int, io: list[Piece], number: int, write: bool) -> "_Flying":
        lib = self._lib
        vector = lib.Iovec([piece.view for piece in io])
        entry = lib.io_uring_get_sqe(self._ring)
        prepare = lib.io_uring_prep_writev if write else lib.io_uring_prep_readv
        prepare(entry, file, vector, io[0].offset)
        entry.user_data = number
        return _Flying(io, vector, sum(len(piece.view) for piece in io))

    def _submit(self, flying: dict[int, "_Flying"], partial: list[list[Piece]]) -> None:
        for _ in range(SUBMIT_TRIES):
            if self.broken or not self._lib.io_uring_sq_ready(self._ring):
                return
            try:
                self._lib.io_uring_submit(self._ring)
            except OSError:  # for the moment the kernel has no memory for it
                self._poll.poll(1)
        # It never has: what it did not take goes another way, and the ring is used no more.
        self.broken = True
        for number in list(flying)[-self._lib.io_uring_sq_ready(self._ring) :]:
            partial.append(flying.pop(number).io)

    def _reap(self, flying: dict[int, "_Flying"], partial: list[list[Piece]]) -> None:
        """Wait until at least one I/O has ended, and take note of all that have."""
        lib = self._lib
        if flying and not lib.io_uring_cq_ready(self._ring):
            self._poll.poll()
        for _ in range(lib.io_uring_cq_ready(self._ring)):
            lib.io_uring_peek_cqe(self._ring, self._cqe)
            entry = self._cqe[0]  # only the first: the queue is a ring, its rest may wrap around
            moved = flying.pop(entry.user_data)
            try:
                num_bytes = entry.res
            except OSError:  # the caller tries each of its pieces again, and tells what it meets
                num_bytes = -1
            lib.io_uring_cq_advance(self._ring, 1)
            if num_bytes != moved.num_bytes:
                partial.append(moved.io)


class _Flying(NamedTuple):
    """An I/O in flight; `vector` is what the kernel finds its buffers by."""

    io: list[Piece]
    vector: object
    num_bytes: int
