"""Loads that requests wait for: on their way, arrived, or given up at their deadline."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.cache.keys import TierKey
from workbench.cache.tier import KVHierarchy, LoadResult
from workbench.request import Request
from workbench.temporal.scheduling.loads import FetchCounters, Loaded, PendingLoad
from workbench.temporal.scheduling.retrieval import Retrieval
from workbench.temporal.scheduling.swap import SwapSpace

MIN_DEADLINE_S = 20.0  # a load may take so long, and ten times as long as was predicted
MAX_DEADLINE_S = 3600.0


@dataclass
class Arrivals:
    """Whole loads of requests that are not admitted yet; each pins what it holds until then.

    `compute_s(request, num_pages)`: what is left to compute with so many of its pages loaded.
    """

    hierarchy: KVHierarchy
    swaps: SwapSpace
    retrieval: Retrieval
    counters: FetchCounters
    compute_s: Callable[[Request, int], float]
    now_s: Callable[[], float]
    on_load: Callable[[Request, dict[TierKey, str], float], None]
    no_fetch: dict[str, str] = field(default_factory=dict)  # request -> why: `gate` or `late`
    _pending: dict[int, PendingLoad] = field(default_factory=dict)  # by job
    _loaded: dict[str, Loaded] = field(default_factory=dict)

    @property
    def num_pending(self) -> int:
        """Loads on their way."""
        return len(self._pending)

    @property
    def num_loaded(self) -> int:
        """Requests whose pages are here."""
        return len(self._loaded)

    def submit(
        self,
        request: Request,
        keys: Sequence[TierKey],
        first: int,
        most_s: float | None = None,
        num_slices: int = 1,
        verify: bool = True,
    ) -> PendingLoad:
        """Start a load of a request's pages from `first` on, that may take `most_s` seconds.

        Nobody waits for it before `wait_for`.
        """
        allowed_s = max(MIN_DEADLINE_S, 10.0 * self.hierarchy.lookups.estimate_load_s(keys))
        start_s = self.now_s()
        deadline_s = start_s + min(allowed_s if most_s is None else most_s, MAX_DEADLINE_S)
        compute_s = self.compute_s(request, first + len(keys))
        job_id = self.hierarchy.submit_load(keys, num_slices, compute_s, verify=verify)
        return PendingLoad(job_id, first, request, deadline_s, start_s)

    def wait_for(self, pending: PendingLoad) -> None:
        """Its request waits for this load, as a whole."""
        self._pending[pending.job_id] = pending

    def poll(self) -> list[Request]:
        """Collect finished and overdue loads; returns the requests that can be admitted now."""
        ready = []
        for result in self.hierarchy.poll():
            pending = self._pending.pop(result.job_id, None)
            if pending is None:
                self.retrieval.arrived(result)
                self.hierarchy.complete_load(result.job_id)
                continue
            self._take(pending, result)
            ready.append(pending.request)
        self.retrieval.expire()
        now_s = self.now_s()
        late = [pending for pending in self._pending.values() if pending.deadline_s < now_s]
        for pending in late:
            self._give_up(pending)
        return ready + [pending.request for pending in late]

    def of(self, request: Request) -> Loaded | None:
        """What has arrived for a request."""
        return self._loaded.get(request.request_id)

    def drop(self, request: Request) -> None:
        """Let go of what has arrived for a request."""
        loaded = self._loaded.pop(request.request_id, None)
        if loaded is not None:
            self.hierarchy.complete_load(loaded.job_id)

    def cancel(self, request: Request) -> None:
        """Nobody waits for a request's loads any more."""
        for job_id, pending in list(self._pending.items()):
            if pending.request is request:
                del self._pending[job_id]
                self.hierarchy.cancel_load(job_id)

    def _give_up(self, pending: PendingLoad) -> None:
        """Past its deadline: a request takes the leading pages that are there, computes the rest.

        Of swapped pages it needs all. The I/O that goes on unpins what it holds.
        """
        del self._pending[pending.job_id]
        self.counters.num_late_loads += 1
        self.no_fetch[pending.request.request_id] = "late"
        if self.swaps.record(pending.request) is not None:
            self.swaps.forget(pending.request)
            self.hierarchy.cancel_load(pending.job_id)
            return
        result = self.hierarchy.take_arrived(pending.job_id)
        if result.pages:
            self._take(pending, result)
        else:
            self.hierarchy.complete_load(pending.job_id)

    def _take(self, pending: PendingLoad, result: LoadResult) -> None:
        request = pending.request
        pages: dict[TierKey, np.ndarray] = {}
        tiers: dict[TierKey, str] = {}
        whole = self.swaps.record(request) is not None
        for key, page, tier in zip(result.keys, result.pages, result.tiers, strict=True):
            if page is None:
                self.counters.num_failed_pages += 1
                if whole:
                    self.swaps.forget(request)
                break  # a run ends at its first missing page
            pages[key], tiers[key] = page, tier
        self.counters.num_loaded_pages += len(pages)
        self.counters.last_load_s = result.seconds
        self.counters.fetched(Counter(tiers.values()), result.seconds)
        sums = dict(zip(result.keys, result.checksums, strict=True)) if result.checksums else {}
        loaded = Loaded(result.job_id, pending.first, pages, tiers, sums)
        self._loaded[request.request_id] = loaded
        self.on_load(request, tiers, result.seconds)
