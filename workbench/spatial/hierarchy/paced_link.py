"""A throttle of a slow tier: real transfers take effect when a link of a stated bandwidth is done.

    order    loads one after the other as they came, and stores in what time is left
    equal    every request that loads has the same share, and all stores together one more
    slack    a request gets no more than hides behind its own compute, what is left goes to those
             that cannot hide (`link_share.py`); stores take what nobody needs

The bytes move at full speed; what waits is the completion. So no thread sleeps, and a modelled
clock paces just as a real one does. Loads go before stores as in LMCache's disk queue.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from workbench.clock import Clock
from workbench.spatial.hierarchy.link_share import LinkShare

STORES = -1  # the owner of all that goes down
ALL_LOADS = -2  # the owner of all that comes up, in one order


@dataclass(frozen=True, slots=True)
class Load:
    """Who loads, and how many MB/s hide behind what it computes meanwhile; infinite: nothing does,
    0: nobody waits."""

    owner: int
    hiding_mb_s: float = math.inf


@dataclass(frozen=True, slots=True)
class _Held:
    num_bytes: int
    hiding_mb_s: float
    run: Callable[[], None]


class PacedLink:
    """Paces one tier to `mb_s` (10^6 bytes per second; 0 = off); the engine's thread only."""

    def __init__(self, clock: Clock) -> None:
        self.mb_s = 0.0
        self.split = "order"
        self.ended_s = 0.0  # when the link had moved what takes effect now
        self._clock = clock
        self._link = LinkShare(1.0, "slack")
        self._queues: dict[int, deque[_Held]] = {}  # by owner, the one that moves first
        self._flows: dict[int, int] = {}  # flow to owner
        self._finished: deque[tuple[float, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        """Completions held back."""
        return sum(map(len, self._queues.values())) + len(self._finished)

    @property
    def on(self) -> bool:
        """Whether transfers are slowed."""
        return self.mb_s > 0

    def pace(
        self, num_bytes: int, start_s: float, run: Callable[[], None], load: Load | None = None
    ) -> None:
        """Call `run` once the link has moved a transfer that began at `start_s`; at once if off.

        `load`: None for stores.
        """
        if not self.on:
            run()
            return
        self._move(start_s)
        owner, hiding = (STORES, 0.0) if load is None else (load.owner, load.hiding_mb_s)
        if load is not None and self.split == "order":
            owner, hiding = ALL_LOADS, math.inf
        queue = self._queues.setdefault(owner, deque())
        queue.append(_Held(num_bytes, hiding, run))
        if len(queue) == 1:
            self._begin(owner, start_s)

    def advance(self) -> None:
        """Run what the link has moved by now."""
        if self.on:
            self._move(self._clock.now_s())
        while self._finished:
            self.ended_s, run = self._finished.popleft()
            run()

    def release(self) -> None:
        """Let everything that is held back pass now."""
        self._let_pass()
        self.advance()

    def wait_s(self, now_s: float, *, stores: bool = False) -> float:
        """Seconds until a new load would begin to move; of a store, if asked for."""
        if not self.on:
            return 0.0
        self._move(now_s)
        left = self._link.left_bytes()
        total = 0.0
        for flow, owner in self._flows.items():
            if stores or owner != STORES:
                behind = list(self._queues[owner])[1:]
                total += left[flow] + sum(item.num_bytes for item in behind)
        return total / (self.mb_s * 1e6)

    def configure(self, mb_s: float, split: str) -> None:
        """Another rate or rule; what has moved has moved, what waits goes on at the new rate."""
        if (mb_s, split) == (self.mb_s, self.split):
            return
        now_s = self._clock.now_s()
        if self.on:
            self._move(now_s)
        if split != self.split or mb_s <= 0:  # owners differ: what waits is let pass
            self._let_pass()
        self.mb_s, self.split = mb_s, split
        if self.on:
            self._link.set_rate(mb_s, "equal" if split == "equal" else "slack", now_s)

    def _let_pass(self) -> None:
        now_s = self._clock.now_s()
        self._finished += [(now_s, item.run) for queue in self._queues.values() for item in queue]
        self._queues.clear()
        self._flows.clear()
        self._link = LinkShare(self._link.mb_s, self._link.rule, now_s)

    def _begin(self, owner: int, at_s: float) -> None:
        first = self._queues[owner][0]
        flow = self._link.start(first.num_bytes, first.hiding_mb_s, at_s)
        self._flows[flow] = owner

    def _move(self, now_s: float) -> None:
        """Let the link move on; a transfer follows the one of its owner before without a gap."""
        while (end_s := self._link.next_finish_s()) is not None and end_s <= now_s:
            self._end(self._link.advance(end_s))
        self._end(self._link.advance(now_s))

    def _end(self, ended: list[tuple[int, float]]) -> None:
        for flow, at_s in ended:
            owner = self._flows.pop(flow)
            queue = self._queues[owner]
            self._finished.append((at_s, queue.popleft().run))
            if queue:
                self._begin(owner, at_s)
            else:
                del self._queues[owner]
