"""Host memory that bytes pass on their way to a GPU, in turns of two buffers.

    host     | fill A |        | fill B |        | fill A again: only once its copy is done |
    GPU               | copy A | attention of A | copy B | ...

The copies go into the device's current stream, so that what is launched behind them finds the
bytes. On a CPU the one buffer is the result itself.
"""

import numpy as np
import torch
from torch import Tensor


class HostStage:
    """Buffers for one device; pinned where it is a GPU, because only such copies return at once."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._pins = self._device.type == "cuda" and torch.cuda.is_available()
        empty = torch.empty(0, dtype=torch.uint8)
        self._buffers = [empty] if self._device.type == "cpu" else [empty, empty]
        self._sent: list[torch.cuda.Event | None] = [None] * len(self._buffers)
        self._turn = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.untyped_storage().nbytes() for buffer in self._buffers)

    def take(self, num_rows: int, row_bytes: int) -> np.ndarray:
        """A buffer to fill, uint8 [num_rows, row_bytes], once nothing reads it any more."""
        self._turn = (self._turn + 1) % len(self._buffers)
        sent = self._sent[self._turn]
        if sent is not None:
            sent.synchronize()
        size = num_rows * row_bytes
        if self._buffers[self._turn].numel() < size:
            room = size * 5 // 4  # a growing context must not allocate often
            self._buffers[self._turn] = torch.empty(room, dtype=torch.uint8, pin_memory=self._pins)
        filled: np.ndarray = self._buffers[self._turn].numpy()[:size].reshape(num_rows, row_bytes)
        return filled

    def send(self, filled: np.ndarray) -> Tensor:
        """What was taken last, on the device; on a CPU valid until the next `take`."""
        there = torch.from_numpy(filled).to(self._device, non_blocking=True)
        if self._pins:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._sent[self._turn] = event
        return there
