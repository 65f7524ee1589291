"""Latency and bandwidth of a tier, learnt from the transfers it completes."""

import mmap
from dataclasses import dataclass, field

import numpy as np

from workbench.cache.page_copy import slice_checksums
from workbench.clock import Clock
from workbench.spatial.hierarchy.cost_probe import PROBE_BYTES, CostProbe, probe_sizes

KEEP = 0.98  # weight an observation keeps per later one: about the last 50 transfers count


@dataclass
class TransferFit:
    """Exponentially weighted least squares of seconds = latency + bytes / bandwidth.

    Each transfer also weighs 1 / bytes, so that small ones, which know the latency, are heard.
    While sizes hardly vary the slope cannot be told from the offset: then the latency stays as it
    was and only the bandwidth follows. Noise cannot lift the latency above the fastest transfer.
    """

    latency_s: float = 0.0
    seconds_per_byte: float = 0.0
    num_seen: int = 0
    _fastest_s: float = float("inf")
    _sums: np.ndarray = field(default_factory=lambda: np.zeros(5))  # of w, wx, wy, wxx, wxy

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Slope as a rate; 0 while nothing was measured."""
        return 1.0 / self.seconds_per_byte if self.seconds_per_byte > 0 else 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Learn from one transfer; times of zero (a clock that stands still) teach nothing."""
        if seconds <= 0 or num_bytes <= 0:
            return
        x, y = float(num_bytes), seconds
        self._sums = KEEP * self._sums + (1.0 / x, 1.0, y / x, x, y)
        self.num_seen += 1
        self._fastest_s = min(self._fastest_s, seconds)
        weight, sum_x, sum_y, sum_xx, sum_xy = self._sums.tolist()
        mean_x, mean_y = sum_x / weight, sum_y / weight
        variance = sum_xx / weight - mean_x * mean_x
        if variance > (0.05 * mean_x) ** 2:
            slope = (sum_xy / weight - mean_x * mean_y) / variance
            self.latency_s = max(0.0, mean_y - slope * mean_x)
        most_s = min(self._fastest_s, 0.9 * sum_xy / sum_x)  # bytes always cost something
        self.latency_s = min(self.latency_s, most_s)
        self.seconds_per_byte = (sum_xy - self.latency_s * sum_x) / sum_xx  # latency fixed

    def predict_s(self, num_bytes: int, num_transfers: int) -> float:
        """Seconds that so many transfers of so many bytes together take."""
        return num_transfers * self.latency_s + num_bytes * self.seconds_per_byte


def probe_memory(
    clock: Clock, load: TransferFit, store: TransferFit, copy: TransferFit
) -> CostProbe:
    """Seed the fits of DRAM with checksums and copies of several sizes (some milliseconds).

    Up, DRAM verifies and whoever asked copies; down, it does both.
    """

    def move(num_bytes: int) -> tuple[float, float]:
        # Mapped, so that it goes back to the system; touched, so that no page faults later.
        both = np.frombuffer(mmap.mmap(-1, 2 * num_bytes), np.uint8)
        both.fill(1)
        source, target = both[:num_bytes], both[num_bytes:]
        start_s = clock.now_s()
        slice_checksums(source, 1)
        checked_s = clock.now_s()
        target[:] = source
        end_s = clock.now_s()
        return end_s - start_s, checked_s - start_s

    probe = probe_sizes(PROBE_BYTES, move, clock)
    for num_bytes, store_s, load_s in probe.transfers:
        store.observe(num_bytes, store_s)
        load.observe(num_bytes, load_s)
        copy.observe(num_bytes, store_s - load_s)
    return probe
