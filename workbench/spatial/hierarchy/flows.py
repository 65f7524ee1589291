"""Bytes from tier to tier: from where to where they went, in all and over the last seconds.

    G1 ──► G2 ──► G3 ──► G4          a page that is demoted from tier to tier
            └──────────────► G4      one that is written to every tier at once
    G1 ◄── G2 ◄── G3                 a page that comes up through DRAM
    G1 ◄───────── G3                 one that is read into its place, or through staging

Sizes are of pages as they lie in HBM: a codec's blobs and a medium's headers are not counted.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

HBM = "G1"
WINDOW_S = 10.0
_TOGETHER_S = 0.1  # what moves within this is one note

Edge = tuple[str, str]  # source and destination


@dataclass(frozen=True)
class Flow:
    """One edge: bytes since the start, and bytes per second over the last WINDOW_S."""

    source: str
    to: str
    num_bytes: int
    bytes_per_s: float


class Flows:
    """Counts by edge; `now_s` is the engine's clock. The engine's thread only."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._start_s = now_s()
        self._totals: Counter[Edge] = Counter()
        self._recent: deque[tuple[float, Counter[Edge]]] = deque()

    def moved(self, source: str, to: str, num_bytes: int) -> None:
        """Count bytes that have arrived."""
        now_s = self._now_s()
        self._totals[source, to] += num_bytes
        if not self._recent or self._recent[-1][0] < now_s - _TOGETHER_S:
            self._recent.append((now_s, Counter()))
            self._forget(now_s)
        self._recent[-1][1][source, to] += num_bytes

    def edges(self) -> list[Flow]:
        """Every edge on which anything ever moved."""
        now_s = self._now_s()
        self._forget(now_s)
        recent: Counter[Edge] = Counter()
        for _, counted in self._recent:
            recent.update(counted)
        span_s = min(WINDOW_S, now_s - self._start_s)
        return [
            Flow(*edge, total, recent[edge] / span_s if span_s > 0 else 0.0)
            for edge, total in sorted(self._totals.items())
        ]

    def out_of(self, tier: str) -> int:
        """Bytes that went from a tier to others."""
        return sum(total for (source, _), total in self._totals.items() if source == tier)

    def into(self, tier: str) -> int:
        """Bytes that came to a tier from others."""
        return sum(total for (_, to), total in self._totals.items() if to == tier)

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] <= now_s - WINDOW_S:
            self._recent.popleft()
