"""Host buffers of all tiers: the pages of DRAM and a small staging area for disk transfers."""

import numpy as np

from workbench.spatial.hierarchy.aligned import aligned_empty

MIN_STAGING_BYTES = 32 * 1024 * 1024


class HostMemory:
    """Hands out uint8 arrays and counts every byte it has allocated (invariant I10).

    A returned buffer is kept for the next page of its size, because touching fresh memory costs
    more than the copy itself; kept ones count against the same limit as live ones.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.live: dict[int, np.ndarray] = {}
        self.live_bytes = 0
        self.spare_bytes = 0
        self._spare: dict[int, list[np.ndarray]] = {}

    def take(self, num_bytes: int) -> np.ndarray:
        """A buffer with unspecified content: uint8 [num_bytes], at a multiple of 4096.

        So the disk reads into it and writes from it without a copy. A fresh one costs 1 us more
        than an unaligned one, of the 200 us that it takes to fill 360 KiB of fresh memory.
        """
        spare = self._spare.get(num_bytes)
        if spare:
            buffer = spare.pop()
            self.spare_bytes -= num_bytes
        else:
            self._trim(self.limit_bytes - num_bytes)
            buffer = aligned_empty(num_bytes)
        self.live[id(buffer)] = buffer
        self.live_bytes += num_bytes
        return buffer

    def give(self, buffer: np.ndarray) -> None:
        """Take a buffer back."""
        del self.live[id(buffer)]
        self.live_bytes -= buffer.nbytes
        if self.live_bytes + self.spare_bytes + buffer.nbytes <= self.limit_bytes:
            self._spare.setdefault(buffer.nbytes, []).append(buffer)
            self.spare_bytes += buffer.nbytes

    def set_limit(self, limit_bytes: int) -> None:
        """Change the limit; kept buffers above it are freed."""
        self.limit_bytes = limit_bytes
        self._trim(limit_bytes)

    def _trim(self, limit_bytes: int) -> None:
        while self.spare_bytes and self.live_bytes + self.spare_bytes > limit_bytes:
            num_bytes = max(size for size, spare in self._spare.items() if spare)
            self._spare[num_bytes].pop()
            self.spare_bytes -= num_bytes


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
