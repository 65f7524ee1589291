"""Copies into and out of a store's memory, each as long as its time lasts and not longer."""

from collections.abc import Callable, Iterator

import numpy as np

from workbench.clock import Clock
from workbench.spatial.hierarchy.medium import Get, Put
from workbench.spatial.hierarchy.record_header import encode_header, header_bytes
from workbench.spatial.hierarchy.shared_store_arena import ArenaAccess, spans_of
from workbench.spatial.hierarchy.shared_store_protocol import Lease, Runs


class TimedCopies:
    """Has the clock looked at before each piece, and after a read again.

    `pace(num_bytes)` is called before each piece, for a throttle that waits.
    """

    def __init__(self, clock: Clock, pace: Callable[[int], None] | None) -> None:
        self._clock = clock
        self._pace = pace

    def write(self, arena: ArenaAccess, put: Put, runs: Runs, until_s: float) -> bool:
        """Copy a page into its room; False where the time is up and the room no longer ours."""
        header = np.frombuffer(encode_header(put.record), np.uint8)
        return all(
            arena.save(at, part, lambda: self._clock.now_s() <= until_s)
            for data, offset in ((header, 0), (put.payload, header.nbytes))
            for at, part in self._parts(arena, runs, offset, data)
        )

    def read(self, arena: ArenaAccess, get: Get, lease: Lease, until_s: float) -> str:
        """Copy one range; the reason of a miss, `expired` where it took longer than the lease."""
        if lease.reason:
            return lease.reason
        header = encode_header(get.record)
        if lease.header != header:
            return "changed"  # another page of the same key has taken its place

        def in_time() -> bool:
            return self._clock.now_s() <= until_s

        offset = header_bytes(get.record) + get.offset
        again = np.zeros(len(header), np.uint8)
        parts = self._parts(arena, lease.runs, offset, get.out)
        moved = all(arena.load(at, part, in_time) for at, part in parts)
        parts = _parts(arena, lease.runs, 0, again)
        moved = moved and all(arena.load(at, part, in_time) for at, part in parts)
        # Looked at after the copy: what a lease held no longer may be another page's bytes.
        if not in_time():
            return "expired"
        if not moved:
            return "unreachable"
        return "" if again.tobytes() == header else "expired"

    def _parts(
        self, arena: ArenaAccess, runs: Runs, offset: int, data: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        for at, part in _parts(arena, runs, offset, data):
            if self._pace is not None:
                self._pace(part.nbytes)
            yield at, part


def _parts(
    arena: ArenaAccess, runs: Runs, offset: int, data: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Places in the arena beside the parts of `data` that belong there."""
    begin = 0
    for at, size in spans_of(runs, offset, data.nbytes, arena.num_bytes):
        yield at, data[begin : begin + size]
        begin += size
