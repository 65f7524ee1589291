"""What a tier costs, measured when it opens: seconds by size, down and up, in a bounded time.

    sizes    4 KiB, 16 KiB, ... 4 MiB, three rounds from the smallest on
    bounds   PROBE_S a tier; a size that would take longer than what is left of it is not tried

The times feed the tier's fits (`bandwidth.py`), from which the gate reckons, and are kept as they
are, so that the page can show how far a straight line is from them.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.clock import Clock

PROBE_BYTES = tuple(4096 * 4**power for power in range(6))
PROBE_ROUNDS = 3
PROBE_S = 0.5  # of each tier: all of them stay far below five seconds


@dataclass(frozen=True)
class SizeCost:
    """Seconds that so many bytes took, a pair (down, up) each time they were moved."""

    num_bytes: int
    seconds: tuple[tuple[float, float], ...]

    @property
    def store_s(self) -> float:
        """Median of the times down."""
        return statistics.median(down for down, _ in self.seconds)

    @property
    def load_s(self) -> float:
        """Median of the times up."""
        return statistics.median(up for _, up in self.seconds)


@dataclass(frozen=True)
class CostProbe:
    """Costs by size, smallest first, and the seconds that measuring them took."""

    sizes: tuple[SizeCost, ...] = ()
    seconds: float = 0.0

    @property
    def transfers(self) -> list[tuple[int, float, float]]:
        """(bytes, seconds down, seconds up) of every transfer, with its size's medians for times.

        So a fit does not learn from the first transfers of all, which are slow for once.
        """
        return [
            (size.num_bytes, size.store_s, size.load_s)
            for size in self.sizes
            for _ in range(len(size.seconds))
        ]


def probe_sizes(
    sizes: Sequence[int], move: Callable[[int], tuple[float, float] | None], clock: Clock
) -> CostProbe:
    """Move each size a few times as long as time is left.

    `move(num_bytes)`: seconds down and up of one real transfer; None ends the probe.
    """
    begin_s = clock.now_s()
    found: dict[int, list[tuple[float, float]]] = {}
    last = (0, 0.0)  # bytes and seconds of the transfer before, down and up
    for size in [size for _ in range(PROBE_ROUNDS) for size in sizes]:
        left_s = PROBE_S - (clock.now_s() - begin_s)
        grown_s = last[1] * size / last[0] if last[0] else 0.0
        expected_s = sum(found[size][-1]) if size in found else grown_s
        if expected_s > left_s:
            continue  # a smaller one may do
        pair = move(size)
        if pair is None:
            break
        last = size, sum(pair)
        found.setdefault(size, []).append(pair)
    costs = tuple(SizeCost(size, tuple(pairs)) for size, pairs in sorted(found.items()))
    return CostProbe(costs, clock.now_s() - begin_s)
