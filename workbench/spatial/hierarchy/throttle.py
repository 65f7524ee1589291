"""A token bucket that slows DRAM's real transfers to a stated bandwidth (shown as `throttled`).

The tiers below have `paced_link.py`.
"""

from collections.abc import Sequence
from typing import Protocol

from workbench.spatial.hierarchy.bandwidth import TransferFit


class Throttle(Protocol):
    """What a prediction has to know of one."""

    mb_s: float

    @property
    def on(self) -> bool:
        """Whether transfers are slowed."""

    def wait_s(self, now_s: float) -> float:
        """Seconds until a new transfer is served."""


class TokenBucket:
    """Paces transfers to `mb_s` (10^6 bytes per second; 0 = off).

    The bytes move at full speed; what waits is the completion, which `poll` holds back until the
    bucket has refilled. So no thread sleeps, and a modelled clock paces just as a real one does.
    """

    def __init__(self, mb_s: float) -> None:
        self.mb_s = mb_s
        self._free_at_s = 0.0

    @property
    def on(self) -> bool:
        """Whether transfers are slowed."""
        return self.mb_s > 0

    def reserve(self, num_bytes: int, start_s: float) -> float:
        """Take tokens for a transfer that began at `start_s`; returns when it may complete."""
        if not self.on:
            return start_s
        self._free_at_s = max(self._free_at_s, start_s) + num_bytes / (self.mb_s * 1e6)
        return self._free_at_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the bucket serves a new transfer."""
        return max(0.0, self._free_at_s - now_s) if self.on else 0.0

    def set_rate(self, mb_s: float, now_s: float) -> float:
        """Change the rate; returns the factor by which waits that remain become longer."""
        if mb_s == self.mb_s:
            return 1.0
        factor = self.mb_s / mb_s if mb_s > 0 and self.on else 0.0
        self._free_at_s = now_s + max(0.0, self._free_at_s - now_s) * factor
        self.mb_s = mb_s
        return factor


def paced_s(
    fit: TransferFit,
    bucket: Throttle,
    sizes: Sequence[int],
    queued_bytes: int,
    now_s: float,
    at_once: int = 1,
) -> float:
    """Predicted seconds of so many transfers behind what is queued, as a throttle lets them.

    `at_once`: how many move together and so have one latency.
    """
    num_bytes = sum(sizes) + queued_bytes
    seconds = fit.predict_s(num_bytes, -(-len(sizes) // at_once))
    if bucket.on:
        seconds = max(seconds, bucket.wait_s(now_s) + num_bytes / (bucket.mb_s * 1e6))
    return seconds
