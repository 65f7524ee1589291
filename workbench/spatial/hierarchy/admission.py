"""Which pages may go down to a slow tier: any that is not there, or those that are asked for again.

Sources: presence and frequency are KVBM's (NVIDIA Dynamo; frequency starts at 1, doubles at a hit,
loses 1 at each decay step, and 2 is enough); TinyLFU is Einziger and others (arXiv 1512.00727).
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import xxhash

from workbench.cache.keys import PrivateKey, TierKey
from workbench.clock import Clock

ADMITTED_FROM = 2
DECAY_S = 600.0
MOST_KEYS = 1 << 20
SKETCH_ROWS, SKETCH_WIDTH, SKETCH_TOP = 4, 1 << 14, 15
SAMPLE = 8 * SKETCH_WIDTH  # counts are halved after so many


class Admission(Protocol):
    """Decides which pages a slow tier is offered; pages of one request always are."""

    name: str

    def seen(self, key: TierKey) -> None:
        """A page was stored, or asked for and found."""

    def admits(self, key: TierKey, victim: TierKey | None) -> bool:
        """Whether a page may go down, in place of a victim where there is no room."""


class Presence:
    """Admits whatever is not there yet."""

    name = "presence"

    def seen(self, key: TierKey) -> None:
        """Count nothing."""

    def admits(self, key: TierKey, victim: TierKey | None) -> bool:
        """Always."""
        return True


class Frequency:
    """Admits a page from its second use on."""

    name = "frequency"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count: dict[TierKey, int] = {}
        self._decay_at_s = clock.now_s() + DECAY_S

    def seen(self, key: TierKey) -> None:
        """Start at 1, double at each further use."""
        self._count[key] = min(2 * self._count.get(key, 0) or 1, 1 << 30)
        while self._clock.now_s() >= self._decay_at_s or len(self._count) > MOST_KEYS:
            self._decay_at_s = max(self._decay_at_s, self._clock.now_s()) + DECAY_S
            self._count = {name: count - 1 for name, count in self._count.items() if count > 1}

    def admits(self, key: TierKey, victim: TierKey | None) -> bool:
        """Whether it was used often enough."""
        return isinstance(key, PrivateKey) or self._count.get(key, 0) >= ADMITTED_FROM


class TinyLfu:
    """Admits a page where there is room, or where it is used more than the page that would go.

    A count-min sketch of 4 x 16,384 counters up to 15, halved after eight uses a counter.
    """

    name = "tinylfu"

    def __init__(self) -> None:
        self._sketch = np.zeros((SKETCH_ROWS, SKETCH_WIDTH), np.uint8)
        self._rows = np.arange(SKETCH_ROWS)
        self._num_seen = 0

    def seen(self, key: TierKey) -> None:
        """Count one use; the smallest counters grow, the others are too high by collisions."""
        if isinstance(key, PrivateKey):
            return
        columns = self._columns(key)
        counts = self._sketch[self._rows, columns]
        low = counts.min()
        if low < SKETCH_TOP:
            self._sketch[self._rows, columns] = np.maximum(counts, low + 1)
        self._num_seen += 1
        if self._num_seen >= SAMPLE:
            self._sketch >>= 1
            self._num_seen //= 2

    def estimate(self, key: TierKey) -> int:
        """Uses of a page lately, at least."""
        return int(self._sketch[self._rows, self._columns(key)].min())

    def admits(self, key: TierKey, victim: TierKey | None) -> bool:
        """Whether there is room, or its estimate beats the victim's."""
        if victim is None or isinstance(key, PrivateKey) or isinstance(victim, PrivateKey):
            return True
        return self.estimate(key) > self.estimate(victim)

    def _columns(self, key: TierKey) -> np.ndarray:
        digest = xxhash.xxh3_128_digest(key if isinstance(key, bytes) else repr(key).encode())
        return np.frombuffer(digest, np.uint32) % SKETCH_WIDTH


def make_admission(name: str, clock: Clock) -> Admission:
    """The admission called `name`, with nothing counted yet."""
    made: dict[str, Callable[[], Admission]] = {
        "presence": Presence,
        "frequency": lambda: Frequency(clock),
        "tinylfu": TinyLfu,
    }
    return made[name]()
