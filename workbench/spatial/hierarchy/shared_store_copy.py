"""Copies into and out of a store's memory, each as long as its time lasts and not longer."""

from collections.abc import Callable, Iterator

import numpy as np

from workbench.clock import Clock
from workbench.spatial.hierarchy.medium import Get, Put
from workbench.spatial.hierarchy.record_header import encode_header, header_bytes
from workbench.spatial.hierarchy.shared_store_arena import Arena
from workbench.spatial.hierarchy.shared_store_protocol import Lease, Runs

COPY_BYTES = 1024 * 1024


class TimedCopies:
    """Looks at the clock before each piece, and after a read again.

    `pace(num_bytes)` is called before each piece, for a throttle that waits.
    """

    def __init__(self, clock: Clock, pace: Callable[[int], None] | None) -> None:
        self._clock = clock
        self._pace = pace

    def write(self, arena: Arena, put: Put, runs: Runs, until_s: float) -> bool:
        """Copy a page into its room; False where the time is up and the room no longer ours."""
        header = np.frombuffer(encode_header(put.record), np.uint8)
        for data, offset in ((header, 0), (put.payload, header.nbytes)):
            for piece, part in _pairs(arena.pieces(runs, offset, data.nbytes), data):
                if self._pace is not None:
                    self._pace(part.nbytes)
                if self._clock.now_s() > until_s:
                    return False
                piece[:] = part
        return True

    def read(self, arena: Arena, get: Get, lease: Lease, until_s: float) -> str:
        """Copy one range; the reason of a miss, `expired` where it took longer than the lease."""
        if lease.reason:
            return lease.reason
        header = encode_header(get.record)
        if lease.header != header:
            return "changed"  # another page of the same key has taken its place
        offset = header_bytes(get.record) + get.offset
        for piece, part in _pairs(arena.pieces(lease.runs, offset, get.out.nbytes), get.out):
            if self._pace is not None:
                self._pace(part.nbytes)
            if self._clock.now_s() > until_s:
                return "expired"
            part[:] = piece
        same = arena.read(lease.runs, len(header)) == header
        # Looked at after the copy: what a lease held no longer may be another page's bytes.
        return "" if same and self._clock.now_s() <= until_s else "expired"


def _pairs(pieces: list[np.ndarray], data: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pieces of the arena beside the parts of `data` that belong there, each at most 1 MiB."""
    at = 0
    for piece in pieces:
        for start in range(0, piece.nbytes, COPY_BYTES):
            part = piece[start : start + COPY_BYTES]
            yield part, data[at : at + part.nbytes]
            at += part.nbytes
