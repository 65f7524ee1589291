"""Between HBM and the tiers: demotes evicted rows, fetches hits, swaps preempted requests.

A request holds no HBM blocks while its pages are on the way: loads end in host memory, and blocks
are taken only when it is admitted (vLLM #45388: parked loads must not hold what the head needs).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from workbench.cache.keys import PrefixKey, TierKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.placement import facts_of
from workbench.cache.prefix_index import Row
from workbench.cache.request_blocks import PrefixHit
from workbench.cache.tier import KVHierarchy, LoadResult, Lookup
from workbench.request import Request
from workbench.temporal.scheduling.lineages import Lineages
from workbench.temporal.scheduling.loads import Fetch, FetchCounters, Loaded, PendingLoad
from workbench.temporal.scheduling.prefetch import Prefetch, Prestage
from workbench.temporal.scheduling.retrieval import PartialStart, Retrieval
from workbench.temporal.scheduling.swap import SwapRecord, SwapSpace

MAX_WAITS = 200  # polls a request waits for a page that is still being written
MIN_DEADLINE_S = 20.0  # a load may take so long, and ten times as long as was predicted
MAX_DEADLINE_S = 3600.0


@dataclass
class Fetcher:
    """Owns every transfer between the page store and the hierarchy (engine thread only)."""

    manager: KVCacheManager
    store: PageStore
    hierarchy: KVHierarchy
    recompute_s: Callable[[int], float | None]  # measured time to recompute n tokens
    now_s: Callable[[], float]
    gate: bool = True
    enabled: bool = False
    num_slices: int = 1
    on_load: Callable[[Request, dict[TierKey, str], float], None] = lambda request, tiers, s: None
    counters: FetchCounters = field(default_factory=FetchCounters)
    _pending: dict[int, PendingLoad] = field(default_factory=dict)  # job -> request
    _loaded: dict[str, Loaded] = field(default_factory=dict)
    _waits: dict[str, int] = field(default_factory=dict)
    _no_fetch: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.swaps = SwapSpace(self.manager, self.store, self.hierarchy)
        self.prefetch = Prefetch(self.hierarchy)
        self.prestage = Prestage(self.hierarchy, self.manager)
        self.lineages = Lineages(self.manager, self.hierarchy)
        self.retrieval = Retrieval(
            self.manager, self.store, self.hierarchy, self.counters, self.now_s
        )

    # ---- down

    def demote(self, row: Row) -> bool:
        """Offer a row that is about to be evicted from HBM to the tiers; whether one took it."""
        if not self.enabled:
            return False
        data = self.store.read_row(self.manager.parts(row.blocks))
        facts, coded = facts_of(self.manager.pool, row), self.lineages.coded(row)
        if not self.hierarchy.store(row.key, data, self.num_slices, coded, facts):
            return False
        kept_s = self.manager.lifetimes.kept_for_s(row.chain_key)
        if kept_s:  # prompt caching: what somebody asked to keep goes last below HBM too
            self.hierarchy.keep([row.key] if coded is None else [row.key, coded.key], kept_s)
        self.counters.num_demoted_pages += 1
        return True

    def swap_out(self, request: Request) -> int:
        """Move a request's own pages below HBM before they are freed; returns how many went."""
        if not self.enabled:
            return 0
        moved = self.swaps.swap_out(request, self.num_slices)
        self.counters.num_swapped_pages += moved
        return moved

    # ---- up

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

    def _give_up(self, pending: PendingLoad) -> None:
        """A tier does not answer: the request recomputes, and its I/O unpins what it held."""
        del self._pending[pending.job_id]
        self.counters.num_late_loads += 1
        self._no_fetch.add(pending.request.request_id)
        self.swaps.forget(pending.request)
        self.hierarchy.cancel_load(pending.job_id)

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
        by_page = {id(page): tiers[key] for key, page in pages.items()}
        self._loaded[request.request_id] = Loaded(result.job_id, pending.first, pages, by_page)
        self.on_load(request, tiers, result.seconds)

    def consider(self, request: Request, hit: PrefixHit, *, prefixes: bool = True) -> Fetch:
        """Whether to admit a request now, or fetch what the tiers hold of it first.

        Without `prefixes` only pages that were swapped out are fetched: prefix caching is off.
        """
        request_id = request.request_id
        self._drop_stale(request, hit)
        if not self.enabled or request_id in self._loaded or request_id in self._no_fetch:
            return Fetch.ADMIT
        record = self.swaps.record(request)
        if record is not None:
            keys = self.swaps.keys_below(record)
            if all(self.hierarchy.lookup(key) is Lookup.HIT for key in keys):
                return self._start(request, keys, 0) if keys else Fetch.ADMIT
            if self._may_wait(request, keys):
                return Fetch.WAIT
            self.swaps.forget(request)
        return self._consider_prefix(request, hit) if prefixes else Fetch.ADMIT

    def _drop_stale(self, request: Request, hit: PrefixHit) -> None:
        """Fetch again if what the loaded pages continue has left HBM while the request waited."""
        loaded = self._loaded.get(request.request_id)
        waits = self._waits.get(request.request_id, 0)
        if loaded is None or len(hit.rows) >= loaded.first or waits >= MAX_WAITS:
            return
        self._waits[request.request_id] = waits + 1
        del self._loaded[request.request_id]
        self.hierarchy.complete_load(loaded.job_id)

    def _consider_prefix(self, request: Request, hit: PrefixHit) -> Fetch:
        first = len(hit.rows)
        most = self.manager.most_hit_pages(request)
        lineages = self.lineages.behind(hit)
        best: list[PrefixKey] = []
        found = hit.lineage
        for lineage in lineages:
            keys = self.manager.keys.row_keys(request, lineage)[first:most]
            if keys and (self._asks(request, keys) or self._may_wait(request, keys[:1])):
                return Fetch.WAIT
            run = self._leading_hits(keys)
            if len(run) > len(best):
                best, found = run, lineage
        if not best:
            return Fetch.ADMIT
        num_found, best = len(best), self.retrieval.choose(request, best, first, found)
        if self.gate and not self._worth_it(best, num_found):
            self.counters.num_gated += 1
            self._no_fetch.add(request.request_id)
            return Fetch.ADMIT
        best = self.prefetch.at_hand(request.request_id, best)
        most_s = self.prefetch.most_s(len(best) * self.manager.block_size)
        return self._start(request, list(best), first, most_s) if best else Fetch.ADMIT

    def _asks(self, request: Request, keys: list[PrefixKey]) -> bool:
        """Whether to wait until shared tiers have said which of these keys they have."""
        waits = self._waits.get(request.request_id, 0)
        known = self.hierarchy.know(keys)
        if known or waits >= MAX_WAITS or not self.prefetch.waits:
            return False
        self._waits[request.request_id] = waits + 1
        return True

    def _leading_hits(self, keys: list[PrefixKey]) -> list[PrefixKey]:
        for at, key in enumerate(keys):
            if self.hierarchy.lookup(key) is not Lookup.HIT:
                return keys[:at]
        return keys

    def _may_wait(self, request: Request, keys: list[TierKey] | list[PrefixKey]) -> bool:
        waits = self._waits.get(request.request_id, 0)
        busy = (Lookup.HIT_PENDING, Lookup.RETRY)
        if not (self.prefetch.waits or self.swaps.record(request)):
            return False
        if waits >= MAX_WAITS or not any(self.hierarchy.lookup(key) in busy for key in keys):
            return False
        self._waits[request.request_id] = waits + 1
        return True

    def _worth_it(self, keys: list[PrefixKey], num_pages: int) -> bool:
        """Fetch only if it is predicted to be faster than recomputing the run (decision 7)."""
        load_s = self.hierarchy.estimate_load_s(keys)
        recompute_s = self.recompute_s(num_pages * self.manager.block_size)
        self.counters.last_recompute_s = recompute_s or 0.0
        return recompute_s is None or load_s < recompute_s

    def _start(
        self, request: Request, keys: list[TierKey], first: int, most_s: float | None = None
    ) -> Fetch:
        allowed_s = max(MIN_DEADLINE_S, 10.0 * self.hierarchy.estimate_load_s(keys))
        deadline_s = self.now_s() + min(allowed_s if most_s is None else most_s, MAX_DEADLINE_S)
        job_id = self.hierarchy.submit_load(keys)
        self._pending[job_id] = PendingLoad(job_id, first, request, deadline_s)
        return Fetch.LOADING

    # ---- admission

    def swap_record(self, request: Request) -> SwapRecord | PartialStart | None:
        """The swap of a request if all its pages are at hand now, or its prefix with holes."""
        record, loaded = self.swaps.record(request), self._loaded.get(request.request_id)
        if record is None:
            return self.retrieval.begin(request, loaded)
        pages = loaded.pages if loaded else {}
        if all(key in pages for key in self.swaps.keys_below(record)):
            return record
        self.swaps.forget(request)
        return None

    def restore(self, request: Request, record: SwapRecord | PartialStart) -> bool:
        """Give a swapped request its pages back; False (no room) changes nothing."""
        if isinstance(record, PartialStart):
            admitted = self.retrieval.admit(request, record)
            if admitted:
                pages = self._loaded[request.request_id].pages
                self.write_pages(request, len(record.rows), [pages[key] for key in record.keys])
            return admitted
        fresh = self.swaps.restore(request, record)
        if fresh is None:
            return False
        loaded = self._loaded.get(request.request_id)
        for page, key in fresh.items():
            assert loaded is not None, "a swapped page is neither in HBM nor loaded"
            self.write_pages(request, page, [loaded.pages[key]])
        return True

    def usable_pages(self, request: Request, hit: PrefixHit) -> tuple[list[np.ndarray], str]:
        """Loaded pages that continue the hit, in order, with their lineage."""
        loaded = self._loaded.get(request.request_id)
        if loaded is None or len(hit.rows) < loaded.first:
            return [], hit.lineage
        most = self.manager.most_hit_pages(request)
        for lineage in self.lineages.behind(hit):
            pages: list[np.ndarray] = []
            for key in self.manager.keys.row_keys(request, lineage)[len(hit.rows) : most]:
                if key not in loaded.pages:
                    break
                pages.append(loaded.pages[key])
            if pages:
                return pages, lineage
        return [], hit.lineage

    def write_pages(self, request: Request, first: int, pages: list[np.ndarray]) -> None:
        """Copy loaded pages into the request's blocks from page `first` on."""
        blocks = self.manager.requests[request.request_id]
        for at, page in enumerate(pages):
            ids = blocks.row_at(first + at)
            self.manager.pool.moved_step[[i for i in ids if i >= 0]] = self.manager.pool.step
            self.store.write_row(self.manager.parts(ids), page)
        tiers, block_tokens = self._loaded[request.request_id].tiers, self.manager.block_size
        each_s = self.recompute_s(block_tokens) or 0.0
        self.counters.used(Counter(tiers[id(page)] for page in pages), block_tokens, each_s)

    # ---- the way out

    def release(self, request: Request, *, finished: bool) -> None:
        """Unpin what was loaded for a request; with `finished` forget everything of it."""
        request_id = request.request_id
        loaded = self._loaded.pop(request_id, None)
        if loaded is not None:
            self.hierarchy.complete_load(loaded.job_id)
        self._waits.pop(request_id, None)
        self._no_fetch.discard(request_id)
        self.prefetch.forget(request_id)
        self.prestage.forget(request_id)
        self.swaps.forget(request)
        self.retrieval.forget(request, finished=finished)
        if finished:
            for job_id, pending in list(self._pending.items()):
                if pending.request is request:
                    del self._pending[job_id]
                    self.hierarchy.cancel_load(job_id)

    def is_swapped(self, request: Request) -> bool:
        """Whether a preempted request's own pages lie below HBM."""
        return self.swaps.record(request) is not None

    def was_gated(self, request: Request) -> bool:
        """Whether fetching was refused for this request as slower than recomputing."""
        return request.request_id in self._no_fetch

    @property
    def num_pending(self) -> int:
        """Loads on their way."""
        return len(self._pending)

    @property
    def num_held(self) -> int:
        """Requests with loaded pages that are not admitted yet."""
        return len(self._loaded)
