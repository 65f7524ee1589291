"""Host buffers of all tiers: the pages of DRAM and a small staging area for disk transfers."""

import contextlib
import mmap
from typing import Protocol

import numpy as np

from workbench.spatial.hierarchy.aligned import aligned_empty, round_up

MIN_STAGING_BYTES = 32 * 1024 * 1024
HUGE_PAGE_BYTES = 2 * 1024 * 1024
SLAB_BYTES = 16 * 1024 * 1024


class HostPins(Protocol):
    """Makes host memory known to a GPU's driver."""

    def pin(self, buffer: np.ndarray) -> bool:
        """Whether uint8 [bytes] is pinned now."""

    def unpin(self, buffer: np.ndarray) -> None:
        """Undo a `pin` that worked."""


class HostMemory:
    """Hands out uint8 arrays and counts every byte it has allocated (invariant I10).

    A returned buffer is kept for the next page of its size, because touching fresh memory costs
    more than the copy itself; kept ones count against the same limit as live ones. Small buffers
    are cut in one go from a slab of huge pages, where there are such: disks read into these about
    twice as fast as into scattered small pages. With `pins` each buffer is pinned while it lives.
    """

    def __init__(self, limit_bytes: int, pins: HostPins | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.pinned_bytes = 0
        self._pins = pins
        self._pinned: set[int] = set()  # ids of buffers
        self.live: dict[int, np.ndarray] = {}
        self.live_bytes = 0
        self.spare_bytes = 0
        self._spare: dict[int, list[np.ndarray]] = {}
        self._unwritten: dict[int, int] = {}  # of spare buffers by size: the first so many
        self._slabs: dict[int, tuple[mmap.mmap, int]] = {}  # of a buffer's id: slab and offset

    @property
    def way(self) -> str:
        """What a GPU's driver knows of the buffers; empty where there is none."""
        if self._pins is None:
            return ""
        return "pinned" if self.pinned_bytes == self.live_bytes + self.spare_bytes else "pageable"

    def take(self, num_bytes: int) -> np.ndarray:
        """A buffer with unspecified content: uint8 [num_bytes], at a multiple of 4096."""
        if not self._spare.get(num_bytes):
            self._trim(self.limit_bytes - num_bytes)
            self._allocate(num_bytes)
        buffer = self._pop(num_bytes)
        self.live[id(buffer)] = buffer
        self.live_bytes += num_bytes
        return buffer

    def give(self, buffer: np.ndarray) -> None:
        """Take a buffer back."""
        del self.live[id(buffer)]
        self.live_bytes -= buffer.nbytes
        if self.live_bytes + self.spare_bytes + buffer.nbytes <= self.limit_bytes:
            self._keep(buffer)
        else:
            self._free(buffer)

    def set_limit(self, limit_bytes: int) -> None:
        """Change the limit; kept buffers above it are freed."""
        self.limit_bytes = limit_bytes
        self._trim(limit_bytes)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of kept buffers that nobody has had yet."""
        return sum(size * count for size, count in list(self._unwritten.items()))

    def _pop(self, num_bytes: int) -> np.ndarray:
        """The buffer of a size that was kept last; those that were never out lie below the rest."""
        buffer = self._spare[num_bytes].pop()
        self.spare_bytes -= num_bytes
        left = len(self._spare[num_bytes])
        self._unwritten[num_bytes] = min(self._unwritten.get(num_bytes, 0), left)
        return buffer

    def _keep(self, buffer: np.ndarray) -> None:
        self._spare.setdefault(buffer.nbytes, []).append(buffer)
        self.spare_bytes += buffer.nbytes

    def _allocate(self, num_bytes: int) -> None:
        """One buffer more of a size, or as many as a slab holds and the limit allows."""
        step = round_up(num_bytes)
        room = self.limit_bytes - self.live_bytes - self.spare_bytes
        count = min(room, SLAB_BYTES) // step if step else 0
        if count * step < HUGE_PAGE_BYTES or count < 2:
            self._add(aligned_empty(num_bytes))
            return
        # Private: what is shared lies in shared memory, which has no huge pages by default.
        slab = mmap.mmap(-1, count * step, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages: small ones then
            slab.madvise(mmap.MADV_HUGEPAGE)
        for at in reversed(range(count)):
            buffer = np.frombuffer(slab, np.uint8, num_bytes, at * step)
            self._slabs[id(buffer)] = slab, at * step
            self._add(buffer)

    def _add(self, buffer: np.ndarray) -> None:
        """A new buffer, for the next page of its size."""
        if self._pins is not None and self._pins.pin(buffer):
            self._pinned.add(id(buffer))
            self.pinned_bytes += buffer.nbytes  # and resident from now on
        else:
            self._unwritten[buffer.nbytes] = self._unwritten.get(buffer.nbytes, 0) + 1
        self._keep(buffer)

    def _free(self, buffer: np.ndarray) -> None:
        """Forget a buffer; its part of a slab goes back to the system now, not with the slab."""
        if self._pins is not None and id(buffer) in self._pinned:
            self._pinned.remove(id(buffer))
            self.pinned_bytes -= buffer.nbytes
            self._pins.unpin(buffer)
        slab, offset = self._slabs.pop(id(buffer), (None, 0))
        if slab is not None:
            slab.madvise(mmap.MADV_DONTNEED, offset, round_up(buffer.nbytes))

    def _trim(self, limit_bytes: int) -> None:
        while self.spare_bytes and self.live_bytes + self.spare_bytes > limit_bytes:
            num_bytes = max(size for size, spare in self._spare.items() if spare)
            self._free(self._pop(num_bytes))


class Staging:
    """Counted buffers on their way to or from disk; refuses when full."""

    def __init__(self, memory: HostMemory, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._memory = memory

    def fits(self, num_bytes: int) -> bool:
        """Whether a buffer of that size could be had now."""
        return self.used_bytes + num_bytes <= self.capacity_bytes

    def take(self, num_bytes: int) -> np.ndarray | None:
        """A fresh buffer, or None when staging is full."""
        if not self.fits(num_bytes):
            return None
        self.used_bytes += num_bytes
        return self._memory.take(num_bytes)

    def adopt(self, buffer: np.ndarray) -> bool:
        """Take over a buffer that DRAM gives up; False when staging is full."""
        if not self.fits(buffer.nbytes):
            return False
        self.used_bytes += buffer.nbytes
        return True

    def disown(self, buffer: np.ndarray) -> None:
        """Give an adopted buffer back to DRAM."""
        self.used_bytes -= buffer.nbytes

    def give(self, buffer: np.ndarray) -> None:
        """Return a buffer."""
        self.used_bytes -= buffer.nbytes
        self._memory.give(buffer)
