"""Pages and ranges of pages as aligned pieces of a file, bounced where they do not lie aligned.

payload  |------ whole blocks, as they are ------|--tail--|        header  |------|
                                                  copied                    built
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.spatial.hierarchy.aligned import ALIGN, Bounce, address, round_up
from workbench.spatial.hierarchy.direct_io import FileIo, Piece
from workbench.spatial.hierarchy.disk_record import Placed, encode_header
from workbench.spatial.hierarchy.extents import Run

BOUNCE_BYTES = 1 << 20

Write = tuple[Placed, np.ndarray]
Read = tuple[Placed, int, np.ndarray]  # page, offset in its payload, destination
_Copy = tuple[memoryview, memoryview]  # destination, where its bytes will have been read to


@dataclass(slots=True)
class _Wave:
    """What is written together begins with `next`, which becomes what did not fit."""

    next: tuple[int, Write] | None


class DiskTransfers:
    """Moves batches; those whose bounced parts fit the buffer together go to the file together."""

    def __init__(self, io: FileIo) -> None:
        self.bounce = Bounce(BOUNCE_BYTES)
        self._io = io

    def write(self, writes: Iterable[Write], *, in_order: bool = True) -> dict[int, str]:
        """Write headers and payloads; returns the fault's word of each number that failed.

        `writes` may be a generator: a page is asked for while those before it are on their way. It
        is not to use the file itself. Not `in_order`: pages' pieces lie between each other, and
        are sorted before they go.
        """
        failed: dict[int, str] = {}
        rest = enumerate(writes)
        first = next(rest, None)
        while first is not None:
            wave = _Wave(first)
            pieces = self._page_pieces(wave, rest)
            failed |= self._io.run(pieces if in_order else sorted(pieces, key=_place), write=True)
            self.bounce.reset()
            first = wave.next
        return failed

    def _page_pieces(self, wave: "_Wave", rest: Iterator[tuple[int, Write]]) -> Iterator[Piece]:
        """Pieces of pages whose bounced parts fit the buffer together; `wave.next` is the next."""
        used = 0
        while wave.next is not None:
            number, (placed, payload) = wave.next
            straight = address(payload) % ALIGN == 0
            need = ALIGN + round_up(payload.nbytes % ALIGN if straight else payload.nbytes)
            if used and used + need > self.bounce.capacity_bytes:
                return
            self.bounce.ensure(need)
            used += need
            yield from _scatter(placed.runs, 0, self._page_views(placed, payload, straight), number)
            wave.next = next(rest, None)

    def read(self, reads: Sequence[Read]) -> dict[int, str]:
        """Read ranges of payloads; returns the fault's word of each number that failed."""
        failed: dict[int, str] = {}
        order = sorted(range(len(reads)), key=lambda at: (reads[at][0].runs[0], reads[at][1]))
        needs = [_bounced_bytes(offset, out) for _, offset, out in reads]
        for wave in self._waves(order, needs):
            copies: list[_Copy] = []
            pieces = self._range_pieces(reads, wave, copies)
            if any(len(reads[at][0].runs) > 1 for at in wave):
                pieces = iter(sorted(pieces, key=_place))
            failed |= self._io.run(pieces, write=False)
            for out, source in copies:  # of a failed one too: it is told, and holds nothing of use
                out[:] = source
            self.bounce.reset()
        return failed

    def _waves(self, order: list[int], needs: list[int]) -> Iterator[list[int]]:
        """Operations whose bounced parts fit the buffer together, in the order of their place."""
        wave: list[int] = []
        used = 0
        for at in order:
            if wave and used + needs[at] > self.bounce.capacity_bytes:
                yield wave
                wave, used = [], 0
            self.bounce.ensure(needs[at])
            wave.append(at)
            used += needs[at]
        if wave:
            yield wave

    def _range_pieces(
        self, reads: Sequence[Read], wave: list[int], copies: list[_Copy]
    ) -> Iterator[Piece]:
        for at in wave:
            placed, offset, out = reads[at]
            views = self._range_views(offset, out, copies)
            yield from _scatter(placed.runs, 1 + offset // ALIGN, views, at)

    def _page_views(self, placed: Placed, payload: np.ndarray, straight: bool) -> list[memoryview]:
        header = self.bounce.take(ALIGN)
        encode_header(placed, header)
        data = memoryview(payload)  # type: ignore[arg-type]
        whole = payload.nbytes // ALIGN * ALIGN if straight else 0
        views = [header, data[:whole]]
        if whole < payload.nbytes:
            rest, size = self.bounce.take(round_up(payload.nbytes - whole)), payload.nbytes - whole
            rest[:size] = data[whole:]
            rest[size:] = bytes(len(rest) - size)
            self._count(size)
            views.append(rest)
        return views

    def _range_views(self, offset: int, out: np.ndarray, copies: list[_Copy]) -> list[memoryview]:
        data = memoryview(out)  # type: ignore[arg-type]
        straight = offset % ALIGN == 0 and address(out) % ALIGN == 0
        whole = out.nbytes // ALIGN * ALIGN if straight else 0
        views = [data[:whole]]
        if whole < out.nbytes:
            skip = offset % ALIGN
            rest = self.bounce.take(round_up(skip + out.nbytes - whole))
            copies.append((data[whole:], rest[skip : skip + out.nbytes - whole]))
            self._count(out.nbytes - whole)
            views.append(rest)
        return views

    def _count(self, num_bytes: int) -> None:
        self.bounce.num_copies += 1
        self.bounce.copied_bytes += num_bytes


def _place(piece: Piece) -> int:
    return piece.offset


def _bounced_bytes(offset: int, out: np.ndarray) -> int:
    if offset % ALIGN == 0 and address(out) % ALIGN == 0:
        return round_up(out.nbytes % ALIGN)
    return round_up(offset % ALIGN + out.nbytes)


def _scatter(
    runs: Sequence[Run], first: int, views: Sequence[memoryview], owner: int
) -> Iterator[Piece]:
    """Where views, which follow each other from block `first` of a page on, lie in the file."""
    following = iter(runs)
    start, count = next(following)
    while first >= count:
        first -= count
        start, count = next(following)
    at, left = (start + first) * ALIGN, (count - first) * ALIGN
    for rest in views:
        while rest:
            if not left:
                start, count = next(following)
                at, left = start * ALIGN, count * ALIGN
            part = rest if len(rest) <= left else rest[:left]
            yield Piece(at, part, owner)
            at, left, rest = at + len(part), left - len(part), rest[len(part) :]
