"""How long a request waits for what the tiers below hold of it (SGLang HiCache's three policies).

wait: until it is there. timeout: at most a base time and a share for each 1,024 tokens.
best_effort: not at all; what lies in DRAM is taken, and the rest comes up meanwhile.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from workbench.cache.keys import PrefixKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.tier import KVHierarchy
from workbench.request import Request

BASE_S, PER_KI_S, MOST_S = 2.0, 0.1, 30.0  # HiCache's defaults
MOST_STAGED = 8  # waiting requests that are looked at, from the head of the queue


@dataclass
class Prefetch:
    """The policy, and which requests have pages coming up without waiting for them."""

    hierarchy: KVHierarchy
    policy: str = "wait"
    _running: set[str] = field(default_factory=set)

    @property
    def waits(self) -> bool:
        """Whether requests wait at all."""
        return self.policy != "best_effort"

    def most_s(self, num_tokens: int) -> float | None:
        """Seconds a request may wait for so many tokens; None where the policy sets no time."""
        return (
            min(BASE_S + PER_KI_S * num_tokens / 1024, MOST_S) if self.policy == "timeout" else None
        )

    def at_hand(self, request_id: str, keys: list[PrefixKey]) -> list[PrefixKey]:
        """The keys to load now; without waiting those in DRAM, and the rest comes up meanwhile."""
        count = len(keys) if self.waits else self.hierarchy.num_at_hand(keys)
        if count < len(keys) and request_id not in self._running:
            self._running.add(request_id)
            self.hierarchy.submit_load(
                keys[count:], compute_s=math.inf, ahead=True
            )  # for whoever is admitted after that
        return keys[:count]

    def forget(self, request_id: str) -> None:
        """A request is admitted or over."""
        self._running.discard(request_id)


@dataclass
class Prestage:
    """While requests wait, what slow tiers have of them comes up to DRAM (NVIDIA CMX's prestaging).

    Off, or without DRAM to stage in, a request's pages begin to move when its turn has come.
    """

    hierarchy: KVHierarchy
    manager: KVCacheManager
    on: bool = False
    _done: set[str] = field(default_factory=set)

    def lift(self, waiting: Iterable[Request]) -> None:
        """Start what the first of the queue will need, once a request."""
        if not self.on:
            return
        for request in islice(waiting, MOST_STAGED):
            if request.request_id not in self._done:
                self._stage(request)

    def _stage(self, request: Request) -> None:
        keys = self.manager.keys.row_keys(request, self.manager.keys.lineages[0])
        keys = keys[: self.manager.most_hit_pages(request)]
        first = 0
        while first < len(keys) and self.manager.pool.index.get(keys[first]) is not None:
            first += 1
        below = keys[first:]
        if not self.hierarchy.know(below):
            return  # a shared tier was asked: look again at the next step
        self._done.add(request.request_id)
        below = below[: self.hierarchy.num_held(below)]
        rest = below[self.hierarchy.num_at_hand(below) :]
        if rest:
            self.hierarchy.submit_load(
                rest, compute_s=math.inf, ahead=True
            )  # for whoever is admitted after that

    def forget(self, request_id: str) -> None:
        """A request is admitted or over; preempted, it may be staged anew."""
        self._done.discard(request_id)
