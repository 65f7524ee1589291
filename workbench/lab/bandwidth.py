"""How fast this machine reads memory, measured beside what is compared with it."""

import torch

from workbench.clock import RealClock
from workbench.model.load import LoadedModel

BUFFER_BYTES = 512 * 2**20  # far beyond every cache


class ReadBandwidth:
    """Reads one large buffer again and again; `gb_per_s` is the best of all rounds so far.

    The best and not the median: it is the bound that others are held against.
    """

    def __init__(self, num_bytes: int = BUFFER_BYTES) -> None:
        self._buffer = torch.ones(num_bytes // 4, dtype=torch.float32)
        self._clock = RealClock()
        self.gb_per_s = 0.0

    def measure(self, rounds: int = 3) -> float:
        """Read the buffer `rounds` times; returns the best rate so far in GB/s."""
        for _ in range(rounds):
            started_s = self._clock.now_s()
            self._buffer.sum()
            elapsed_s = self._clock.now_s() - started_s
            self.gb_per_s = max(self.gb_per_s, self._buffer.nbytes / elapsed_s / 1e9)
        return self.gb_per_s


def bytes_read_per_step(model: LoadedModel) -> int:
    """Weight bytes that one step reads: all but the embedding table, of which it reads rows.

    A table that is also the head is read whole, once. Weights in two copies (`auto`) count twice,
    though a step reads one: do not ask for those.
    """
    decoder = model.decoder
    weights = decoder._weights
    if weights.head_shares_embedding:
        return decoder.weight_bytes
    return decoder.weight_bytes - weights.embed.table_bytes
