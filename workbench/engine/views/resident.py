"""How much of a buffer is resident: asked of the system page by page, as `mincore(2)` tells it.

Memory is reserved when it is allocated and becomes resident page by page, when it is first written.
"""

import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

SMALL_BYTES = 1024 * 1024  # below it a buffer counts whole: asking costs more than it tells


class Resident:
    """Resident bytes of one tensor's storage, by ranges; all of it on another device."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.num_bytes = storage.nbytes()
        self._offset = 0
        self._pages: np.ndarray | None = None  # uint8 [pages + 1], 1 where resident; 0 ends them
        ask = _mincore()
        if tensor.device.type != "cpu" or self.num_bytes < SMALL_BYTES or ask is None:
            return
        address = storage.data_ptr()
        self._offset = address % mmap.PAGESIZE
        span = self._offset + self.num_bytes
        pages = np.zeros(-(-span // mmap.PAGESIZE) + 1, np.uint8)
        if ask(address - self._offset, span, pages.ctypes.data):
            raise OSError(ctypes.get_errno(), f"mincore of {self.num_bytes} bytes failed")
        self._pages = np.bitwise_and(pages, 1, out=pages)  # the other bits mean nothing

    def between(self, starts: np.ndarray, ends: np.ndarray) -> int:
        """Resident bytes of ranges, int64 [n] each, to a page; adjoining ones share no page."""
        if self._pages is None or not len(starts):
            return int((ends - starts).sum())
        borders = (np.stack((starts, ends), 1) + self._offset) // mmap.PAGESIZE
        counts = np.add.reduceat(self._pages, borders.ravel(), dtype=np.int64)[::2]
        return int(counts[borders[:, 0] < borders[:, 1]].sum()) * mmap.PAGESIZE

    @property
    def total(self) -> int:
        """Resident bytes of all of it."""
        whole = self.between(np.array([0]), np.array([self.num_bytes]))
        return min(whole, self.num_bytes)


@functools.cache
def _mincore() -> Callable[[int, int, int], int] | None:
    """The system's call; None where there is none, and every buffer counts whole."""
    found: Any = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if found is not None:
        found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return found  # type: ignore[no-any-return]
