"""Latency and bandwidth of a tier, learnt from the transfers it completes."""

from dataclasses import dataclass, field

import numpy as np

from workbench.clock import Clock
from workbench.spatial.hierarchy.entries import slice_checksums

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
            latency = mean_y - slope * mean_x
            if slope > 0 and 0 <= latency <= self._fastest_s:
                self.latency_s, self.seconds_per_byte = latency, slope
                return
            self.latency_s = 0.0 if latency < 0 else self.latency_s
        self.latency_s = min(self.latency_s, self._fastest_s, 0.9 * mean_y)
        self.seconds_per_byte = (sum_xy - self.latency_s * sum_x) / sum_xx  # latency fixed

    def predict_s(self, num_bytes: int, num_transfers: int) -> float:
        """Seconds that so many transfers of so many bytes together take."""
        return num_transfers * self.latency_s + num_bytes * self.seconds_per_byte


def probe_memory(clock: Clock, load: TransferFit, store: TransferFit, copy: TransferFit) -> None:
    """Seed the fits of DRAM with checksums and copies of three sizes (a few milliseconds)."""
    for num_bytes in (4 * 1024, 64 * 1024, 1024 * 1024):
        source = np.ones(num_bytes, dtype=np.uint8)
        target = np.zeros(num_bytes, dtype=np.uint8)
        for _ in range(3):
            start_s = clock.now_s()
            slice_checksums(source, 1)
            checked_s = clock.now_s()
            target[:] = source
            end_s = clock.now_s()
            load.observe(num_bytes, checked_s - start_s)
            copy.observe(num_bytes, end_s - checked_s)
            store.observe(num_bytes, end_s - start_s)
