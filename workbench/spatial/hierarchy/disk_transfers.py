"""Pages and ranges of pages as aligned pieces of a file, bounced where they do not lie aligned.

payload  |------ whole blocks, as they are ------|--tail--|        header  |------|
                                                  copied                    built
"""

from collections.abc import Iterator, Sequence

import numpy as np

from workbench.spatial.hierarchy.aligned import ALIGN, Bounce, address, round_up
from workbench.spatial.hierarchy.direct_io import DirectIo, Piece
from workbench.spatial.hierarchy.disk_record import Placed, encode_header
from workbench.spatial.hierarchy.extents import Run

BOUNCE_BYTES = 1 << 20

Write = tuple[Placed, np.ndarray]
Read = tuple[Placed, int, np.ndarray]  # page, offset in its payload, destination
_Copy = tuple[np.ndarray, np.ndarray]  # destination, where its bytes will have been read to


class DiskTransfers:
    """Moves batches; those whose bounced parts fit the buffer together go to the file together."""

    def __init__(self, io: DirectIo) -> None:
        self.bounce = Bounce(BOUNCE_BYTES)
        self._io = io

    def write(self, writes: Sequence[Write]) -> dict[int, str]:
        """Write headers and payloads; returns the fault's word of each number that failed."""
        failed: dict[int, str] = {}
        pieces: list[Piece] = []
        for number, (placed, payload) in enumerate(writes):
            num_bytes = _written_bytes(payload)
            if not self.bounce.fits(num_bytes):
                failed |= self._io.run(pieces, write=True)
                pieces = []
                self.bounce.reset()
                self.bounce.fits(num_bytes)
            views = self._page_views(placed, payload)
            pieces += _scatter(placed.runs, 0, views, number)
        failed |= self._io.run(pieces, write=True)
        self.bounce.reset()
        return failed

    def read(self, reads: Sequence[Read]) -> dict[int, str]:
        """Read ranges of payloads; returns the fault's word of each number that failed."""
        failed: dict[int, str] = {}
        pieces: list[Piece] = []
        copies: list[_Copy] = []
        for number, (placed, offset, out) in enumerate(reads):
            num_bytes = _bounced_bytes(offset, out)
            if not self.bounce.fits(num_bytes):
                failed |= self._fetch(pieces, copies)
                pieces, copies = [], []
                self.bounce.fits(num_bytes)
            views = self._range_views(offset, out, copies)
            pieces += _scatter(placed.runs, 1 + offset // ALIGN, views, number)
        return failed | self._fetch(pieces, copies)

    def _fetch(self, pieces: list[Piece], copies: list[_Copy]) -> dict[int, str]:
        failed = self._io.run(pieces, write=False)
        for out, source in copies:  # of one that failed too: it is told, and holds nothing of use
            out[:] = source
        self.bounce.reset()
        return failed

    def _page_views(self, placed: Placed, payload: np.ndarray) -> list[np.ndarray]:
        header = self.bounce.take(ALIGN)
        header[:] = np.frombuffer(encode_header(placed), np.uint8)
        whole = payload.nbytes // ALIGN * ALIGN if address(payload) % ALIGN == 0 else 0
        views = [header, payload[:whole]]
        if whole < payload.nbytes:
            rest = self.bounce.take(round_up(payload.nbytes - whole))
            rest[: payload.nbytes - whole] = payload[whole:]
            rest[payload.nbytes - whole :] = 0
            self._count(payload.nbytes - whole)
            views.append(rest)
        return views

    def _range_views(self, offset: int, out: np.ndarray, copies: list[_Copy]) -> list[np.ndarray]:
        straight = offset % ALIGN == 0 and address(out) % ALIGN == 0
        whole = out.nbytes // ALIGN * ALIGN if straight else 0
        views = [out[:whole]]
        if whole < out.nbytes:
            skip = offset % ALIGN
            rest = self.bounce.take(round_up(skip + out.nbytes - whole))
            copies.append((out[whole:], rest[skip : skip + out.nbytes - whole]))
            self._count(out.nbytes - whole)
            views.append(rest)
        return views

    def _count(self, num_bytes: int) -> None:
        self.bounce.num_copies += 1
        self.bounce.copied_bytes += num_bytes


def _written_bytes(payload: np.ndarray) -> int:
    aligned = address(payload) % ALIGN == 0
    return ALIGN + round_up(payload.nbytes % ALIGN if aligned else payload.nbytes)


def _bounced_bytes(offset: int, out: np.ndarray) -> int:
    if offset % ALIGN == 0 and address(out) % ALIGN == 0:
        return round_up(out.nbytes % ALIGN)
    return round_up(offset % ALIGN + out.nbytes)


def _scatter(
    runs: Sequence[Run], first: int, views: Sequence[np.ndarray], owner: int
) -> Iterator[Piece]:
    """Where views, which follow each other from block `first` of a page on, lie in the file."""
    following = iter(runs)
    start, count = next(following)
    while first >= count:
        first -= count
        start, count = next(following)
    at, left = (start + first) * ALIGN, (count - first) * ALIGN
    for view in views:
        rest = memoryview(view)  # type: ignore[arg-type]
        while len(rest):
            if not left:
                start, count = next(following)
                at, left = start * ALIGN, count * ALIGN
            part = rest[:left]
            yield Piece(at, part, owner)
            at, left, rest = at + len(part), left - len(part), rest[left:]
