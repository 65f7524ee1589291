"""Memory that begins at a multiple of 4096, as reads and writes past the page cache need it."""

import numpy as np

ALIGN = 4096


def round_up(num_bytes: int) -> int:
    """The next multiple of 4096."""
    return -(-num_bytes // ALIGN) * ALIGN


def address(array: np.ndarray) -> int:
    """Where an array's first byte lies."""
    return array.__array_interface__["data"][0]


def aligned_empty(num_bytes: int) -> np.ndarray:
    """uint8 [num_bytes] at a multiple of 4096, content unspecified.

    Asks for up to 4095 bytes more than it hands out; they are never touched.
    """
    whole = np.empty(num_bytes + ALIGN - 1, dtype=np.uint8)
    start = -address(whole) % ALIGN
    return whole[start : start + num_bytes]


class Bounce:
    """One aligned buffer through which bytes go that do not lie aligned themselves.

    `num_copies` and `copied_bytes` count what went through it, headers of ours apart.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.num_copies = 0
        self.copied_bytes = 0
        self._buffer = aligned_empty(round_up(capacity_bytes))
        self._view = memoryview(self._buffer)  # type: ignore[arg-type]
        self._used_bytes = 0

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the buffer."""
        return self._buffer.nbytes

    def ensure(self, num_bytes: int) -> None:
        """Have a buffer of at least so much; nothing may be taken of a smaller one."""
        if num_bytes > self._buffer.nbytes:
            self._buffer = aligned_empty(round_up(num_bytes))
            self._view = memoryview(self._buffer)  # type: ignore[arg-type]

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes of the buffer, a multiple of 4096; there must be room for them."""
        part = self._view[self._used_bytes : self._used_bytes + num_bytes]
        self._used_bytes += num_bytes
        return part

    def reset(self) -> None:
        """Begin anew: nothing in flight uses the buffer any more."""
        self._used_bytes = 0
