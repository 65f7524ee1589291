"""While requests wait, what slow tiers have of them comes up to DRAM (NVIDIA CMX's prestaging).

Pages of a medium that others evict from are held there meanwhile, until they have come up. Without
DRAM to stage in, a request's pages begin to move when its turn has come, and are held until then.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from workbench.cache.keys import PrefixKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.tier import HOLD_S, KVHierarchy
from workbench.request import Request
from workbench.temporal.scheduling.lineages import Lineages

MOST_STAGED = 8  # waiting requests that are looked at, from the head of the queue


@dataclass
class _Staged:
    """What was done for one request: `settled` once no tier will have more of it soon."""

    run: list[PrefixKey] = field(default_factory=list)
    asked: set[PrefixKey] = field(default_factory=set)
    settled: bool = False
    hold_again_s: float = -math.inf


@dataclass
class Prestage:
    """Starts the loads of the first of the queue, each page once a request."""

    hierarchy: KVHierarchy
    manager: KVCacheManager
    lineages: Lineages
    now_s: Callable[[], float]
    on: bool = False
    _staged: dict[str, _Staged] = field(default_factory=dict)

    def lift(self, waiting: Iterable[Request]) -> None:
        """Start what the first of the queue will need, and keep it where it lies until then."""
        if not self.on:
            return
        for request in islice(waiting, MOST_STAGED):
            staged = self._staged.setdefault(request.request_id, _Staged())
            if not staged.settled:
                self._stage(request, staged)
            self._hold(staged)

    def _stage(self, request: Request, staged: _Staged) -> None:
        """Look for the longest run that continues the hit, as an admission will."""
        hit = self.manager.find_prefix(request)
        first, most = len(hit.rows), self.manager.most_hit_pages(request)
        staged.settled, staged.run = True, []
        for lineage in self.lineages.behind(hit):
            keys = self.manager.keys.row_keys(request, lineage)[first:most]
            known = self.hierarchy.lookups.know(keys)  # False: a shared tier was asked
            count = self.hierarchy.before_turn.num_held(keys)
            coming = count < len(keys) and self.hierarchy.before_turn.is_coming(keys[count])
            staged.settled &= known and not coming
            if count > len(staged.run):
                staged.run = keys[:count]
        if self.hierarchy.before_turn.can_stage:
            self._begin(staged)

    def _begin(self, staged: _Staged) -> None:
        rest = staged.run[self.hierarchy.lookups.num_at_hand(staged.run) :]
        rest = [key for key in rest if key not in staged.asked]
        if rest:
            staged.asked.update(rest)
            self.hierarchy.submit_load(
                rest, compute_s=math.inf, ahead=True
            )  # for whoever is admitted after that

    def _hold(self, staged: _Staged) -> None:
        """Ask media anew in time for those pages that are not in DRAM yet."""
        now_s = self.now_s()
        if staged.run and now_s >= staged.hold_again_s:
            staged.hold_again_s = now_s + HOLD_S / 2
            self.hierarchy.before_turn.hold(
                staged.run[self.hierarchy.lookups.num_at_hand(staged.run) :]
            )

    def forget(self, request_id: str) -> None:
        """A request is admitted or over; preempted, it may be staged anew."""
        self._staged.pop(request_id, None)
