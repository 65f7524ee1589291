"""Bytes between host memory and a GPU's arena, on a stream beside the one that computes.

    compute  | attention of earlier layers ...          | waits for A, B | next layers
    copies   | page A | page B | ...   settled

Copies from memory that is pinned for CUDA go on by themselves; from other memory the driver copies
first. Nothing here runs on a CPU.
"""

import numpy as np
import torch
from torch import Tensor


class DeviceCopies:
    """Copies into and out of one arena, uint8 [bytes] on a GPU; one thread's."""

    def __init__(self, arena: Tensor) -> None:
        self._arena = arena
        self._stream = torch.cuda.Stream(arena.device)
        self._bounce = torch.empty(0, dtype=torch.uint8, pin_memory=True)
        self._pending = False

    def up(self, offset: int, page: np.ndarray) -> None:
        """Begin to copy uint8 bytes to `offset`; `page` stays as it is until `settle`."""
        if not self._pending:  # what read these blocks before has to be done with them
            self._stream.wait_stream(torch.cuda.current_stream(self._arena.device))
            self._pending = True
        source = torch.from_numpy(page if page.flags.writeable else page.copy())
        with torch.cuda.stream(self._stream):
            self._arena[offset : offset + len(page)].copy_(source, non_blocking=True)

    def settle(self) -> None:
        """Wait for what began; whatever is launched from now on finds it."""
        if self._pending:
            self._stream.synchronize()
            self._pending = False

    def down(self, offset: int, size: int) -> np.ndarray:
        """A copy of some bytes in host memory, uint8 [size]."""
        self.settle()
        if self._bounce.numel() < size:
            self._bounce = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = self._bounce[:size]
        there.copy_(self._arena[offset : offset + size])
        page: np.ndarray = there.numpy().copy()
        return page
