"""Completions that a throttle holds back until its tier would have moved the bytes."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from workbench.clock import Clock
from workbench.spatial.hierarchy.throttle import TokenBucket


@dataclass(order=True, slots=True)
class _Held:
    ready_at_s: float
    order: int
    tier: str
    run: Callable[[], None]


class HeldCompletions:
    """Ordered by when they may take effect; the engine's thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: list[_Held] = []
        self._num_held = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, tier: str, ready_at_s: float, run: Callable[[], None]) -> None:
        """Call `run` once the throttle lets this completion pass (at once if it does now)."""
        if ready_at_s <= self._clock.now_s():
            run()
            return
        self._num_held += 1
        heapq.heappush(self._held, _Held(ready_at_s, self._num_held, tier, run))

    def advance(self) -> None:
        """Run what may pass by now."""
        now_s = self._clock.now_s()
        while self._held and self._held[0].ready_at_s <= now_s:
            heapq.heappop(self._held).run()

    def release(self, tier: str) -> None:
        """Let a tier's completions pass now, because the tier goes away."""
        held = sorted(item for item in self._held if item.tier == tier)
        self._held = [item for item in self._held if item.tier != tier]
        heapq.heapify(self._held)
        for item in held:
            item.run()

    def set_rate(self, tier: str, bucket: TokenBucket, mb_s: float) -> None:
        """Change a tier's throttle; what waits now waits proportionally longer or shorter."""
        now_s = self._clock.now_s()
        factor = bucket.set_rate(mb_s, now_s)
        if factor != 1.0:
            for item in self._held:
                if item.tier == tier:
                    item.ready_at_s = now_s + max(0.0, item.ready_at_s - now_s) * factor
            heapq.heapify(self._held)
