"""Between HBM and the tiers: demotes evicted rows, fetches hits, swaps preempted requests.

A request holds no HBM blocks while its pages are on the way: loads end in host memory, and blocks
are taken only when it is admitted (vLLM #45388: parked loads must not hold what the head needs).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from workbench.cache.keys import TierKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.placement import facts_of
from workbench.cache.prefix_index import Row
from workbench.cache.request_blocks import PrefixHit
from workbench.cache.row_slices import RowSlices
from workbench.cache.tier import KVHierarchy, Lookup
from workbench.request import Request
from workbench.temporal.overlap.layer_loads import LayerLoads
from workbench.temporal.scheduling.arrivals import Arrivals
from workbench.temporal.scheduling.finding import Finding
from workbench.temporal.scheduling.lineages import Lineages
from workbench.temporal.scheduling.loads import Fetch, FetchCounters, Found
from workbench.temporal.scheduling.page_filling import PageFilling
from workbench.temporal.scheduling.prefetch import Prefetch
from workbench.temporal.scheduling.prestage import Prestage
from workbench.temporal.scheduling.retrieval import PartialStart, Retrieval
from workbench.temporal.scheduling.swap import SwapRecord, SwapSpace
from workbench.temporal.scheduling.worth import Worth


@dataclass
class Fetcher:
    """Owns every transfer between the page store and the hierarchy (engine thread only)."""

    manager: KVCacheManager
    store: PageStore
    hierarchy: KVHierarchy
    recompute_s: Callable[[int], float | None]  # measured time to recompute n tokens
    now_s: Callable[[], float]
    slices: RowSlices
    enabled: bool = False
    on_load: Callable[[Request, dict[TierKey, str], float], None] = lambda request, tiers, s: None
    counters: FetchCounters = field(default_factory=FetchCounters)

    def __post_init__(self) -> None:
        self.swaps = SwapSpace(self.manager, self.store, self.hierarchy)
        self.prefetch = Prefetch(self.hierarchy)
        self.lineages = Lineages(self.manager, self.hierarchy)
        self.prestage = Prestage(self.hierarchy, self.manager, self.lineages, self.now_s)
        self.finding = Finding(self.manager, self.hierarchy, self.lineages, self.prefetch)
        self.worth = Worth(self.hierarchy, self.recompute_s, self.counters)
        self.filling = PageFilling(
            self.manager, self.store, self.counters, self.recompute_s, self.hierarchy, self.now_s
        )
        self.layers = LayerLoads(self.store, self.hierarchy, self.slices, self.now_s)
        self.retrieval = Retrieval(
            self.manager, self.store, self.hierarchy, self.counters, self.now_s, self.on_load
        )
        self.arrivals = Arrivals(
            self.hierarchy, self.swaps, self.retrieval, self.counters, self._compute_s,
            self.now_s, self.on_load,
        )  # fmt: skip

    # ---- down

    def demote(self, row: Row) -> bool:
        """Offer a row that is about to be evicted from HBM to the tiers; whether one took it."""
        if not self.enabled:
            return False
        parts, coded = self.manager.parts(row.blocks), self.lineages.coded(row)
        data, num_slices = self.store.read_row(parts), self.slices.count(parts)
        facts = facts_of(self.manager.pool, row)
        if not self.hierarchy.store(row.key, data, num_slices, coded, facts):
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
        moved = self.swaps.swap_out(request, self.slices)
        self.counters.num_swapped_pages += moved
        return moved

    # ---- up

    def poll(self) -> list[Request]:
        """Collect finished and overdue loads; returns the requests that can be admitted now."""
        return self.arrivals.poll()

    def consider(
        self,
        request: Request,
        hit: PrefixHit,
        *,
        prefixes: bool = True,
        step_tokens: int | None = None,
    ) -> Fetch:
        """Whether to admit a request now, or fetch what the tiers hold of it first.

        Without `prefixes` only pages that were swapped out are fetched: prefix caching is off.
        `step_tokens`: what it may compute in a step that others are part of; None if it is alone.
        """
        request_id = request.request_id
        self._drop_stale(request, hit)
        decided = request_id in self.arrivals.no_fetch or self.arrivals.of(request) is not None
        if not self.enabled or decided:
            return Fetch.ADMIT
        record = self.swaps.record(request)
        if record is not None:
            keys = self.swaps.keys_below(record)
            if all(self.hierarchy.lookups.lookup(key) is Lookup.HIT for key in keys):
                self.finding.count(request, keys)
                return self._start(request, keys, 0) if keys else Fetch.ADMIT
            if self.finding.may_wait(request, keys, swapped=True):
                return Fetch.WAIT
            self.finding.count(request, keys)
            self.swaps.forget(request)
        return self._consider_prefix(request, hit, step_tokens) if prefixes else Fetch.ADMIT

    def _drop_stale(self, request: Request, hit: PrefixHit) -> None:
        """Fetch again if what the loaded pages continue has left HBM while the request waited."""
        loaded = self.arrivals.of(request)
        stale = loaded is not None and len(hit.rows) < loaded.first
        if stale and self.finding.wait(request):
            self.arrivals.drop(request)

    def _consider_prefix(self, request: Request, hit: PrefixHit, step_tokens: int | None) -> Fetch:
        first, size = len(hit.rows), self.manager.block_size
        found = self.finding.find(request, hit)
        if found is None:
            return Fetch.WAIT
        run, lineage = found
        if not run:
            return Fetch.ADMIT
        keys = self.retrieval.choose(request, run, first, lineage)
        if not self.worth.fetching(keys, len(run) * size):
            self.arrivals.no_fetch[request.request_id] = "gate"
            return Fetch.ADMIT
        rest = request.num_tokens - (first + len(run)) * size
        shared = None if step_tokens is None else min(step_tokens, rest)
        whole = len(keys) == len(run)  # with holes in it, a prefix starts in another way
        if whole and self.layers.takes(request, keys) and self.worth.overlapping(keys, shared):
            pending = self.arrivals.submit(request, list(keys), first, None, self.layers.num_slices)
            self.layers.expect(Found(lineage, keys=list(keys), coming=pending))
            return Fetch.ADMIT
        keys = self.prefetch.at_hand(request.request_id, keys)
        most_s = self.prefetch.most_s(len(keys) * size)
        if not keys:
            return Fetch.ADMIT
        return self._start(request, list(keys), first, most_s, verify=not whole)

    def _start(
        self,
        request: Request,
        keys: list[TierKey],
        first: int,
        most_s: float | None = None,
        verify: bool = True,
    ) -> Fetch:
        pending = self.arrivals.submit(request, keys, first, most_s, verify=verify)
        self.arrivals.wait_for(pending)
        return Fetch.LOADING

    def _compute_s(self, request: Request, num_pages: int) -> float:
        """Measured time to compute what is left of a request with its first pages here."""
        rest = request.num_tokens - num_pages * self.manager.block_size
        return self.recompute_s(max(0, rest)) or 0.0

    def park(self, request: Request) -> bool:
        """A request was not admitted after all: what comes by layers is waited for as a whole."""
        coming = self.layers.give_up(request)
        if coming is not None:
            self.hierarchy.by_slices.begin(coming.job_id)
            self.arrivals.wait_for(coming)
        return coming is not None

    # ---- admission

    def swap_record(self, request: Request) -> SwapRecord | PartialStart | None:
        """The swap of a request if all its pages are at hand now, or its prefix with holes."""
        record, loaded = self.swaps.record(request), self.arrivals.of(request)
        if record is None:
            return self.retrieval.begin(request, loaded)
        pages = loaded.pages if loaded else {}
        if all(key in pages for key in self.swaps.keys_below(record)):
            return record
        self.swaps.forget(request)
        return None

    def restore(self, request: Request, record: SwapRecord | PartialStart) -> bool:
        """Give a swapped request its pages back; False (no room) changes nothing."""
        loaded = self.arrivals.of(request)
        if isinstance(record, PartialStart):
            admitted = self.retrieval.admit(request, record)
            if admitted:
                assert loaded is not None, "a prefix with holes begins with what was loaded"
                self.filling.write(request, len(record.rows), record.keys, loaded)
            return admitted
        fresh = self.swaps.restore(request, record)
        if fresh is None:
            return False
        for page, key in fresh.items():
            assert loaded is not None, "a swapped page is neither in HBM nor loaded"
            self.filling.write(request, page, [key], loaded)
        return True

    def usable_pages(self, request: Request, hit: PrefixHit) -> Found:
        """Pages that continue the hit, in order: loaded ones, or those that come by layers."""
        expected = self.layers.expected(request)
        if expected is not None:
            return expected
        loaded = self.arrivals.of(request)
        if loaded is None or len(hit.rows) < loaded.first:
            return Found(hit.lineage)
        most = self.manager.most_hit_pages(request)
        for lineage in self.lineages.behind(hit):
            keys = self.manager.keys.row_keys(request, lineage)[len(hit.rows) : most]
            there = takewhile(loaded.pages.__contains__, keys)
            if found := list[TierKey](there):
                return Found(lineage, found)
        return Found(hit.lineage)

    def place(self, request: Request, first: int, found: Found) -> bool:
        """Fill the request's blocks from page `first` on: now, or layer by layer in this step.

        False where a page is damaged: it is forgotten with those behind it, the blocks are no good.
        """
        if found.coming is None:
            loaded = self.arrivals.of(request)
            assert loaded is not None, "pages that continue a hit were loaded, or come by layers"
            bad = self.filling.write(request, first, found.keys, loaded)
            if bad is not None:
                self.counters.num_failed_pages += 1
                self.counters.num_loaded_pages -= loaded.drop_from(bad)
            return bad is None
        parts = [self.filling.parts(request, first + at) for at in range(found.num_pages)]
        self.layers.begin(request, parts)
        return True

    def end_layers(self) -> list[Request]:
        """The step has ended; requests whose loads by layers failed, so that it does not count."""
        loads, failed = self.layers.finish(), []
        for load in loads:
            self.counters.came_by_layers(load.tiers, load.wait_s, load.failed, load.late)
            if load.failed:
                failed.append(load.request)
                if load.late:
                    self.arrivals.no_fetch[load.request.request_id] = "late"
                continue
            self.filling.count(load.tiers)
            self.manager.publish(load.request, load.request.num_computed_tokens)
            tiers = dict(zip(load.found.keys, load.tiers, strict=True))
            self.on_load(load.request, tiers, load.wait_s)
        return failed

    # ---- the way out

    def release(self, request: Request, *, finished: bool) -> None:
        """Unpin what was loaded for a request; with `finished` forget everything of it."""
        request_id = request.request_id
        self.arrivals.drop(request)
        coming = self.layers.give_up(request)
        if coming is not None:
            self.hierarchy.cancel_load(coming.job_id)
        self.finding.forget(request_id)
        self.arrivals.no_fetch.pop(request_id, None)
        self.prefetch.forget(request_id)
        self.prestage.forget(request_id)
        self.swaps.forget(request)
        self.retrieval.forget(request, finished=finished)
        if finished:
            self.layers.forget(request)
            self.arrivals.cancel(request)

    def is_swapped(self, request: Request) -> bool:
        """Whether a preempted request's own pages lie below HBM."""
        return self.swaps.record(request) is not None

    def why_not_fetched(self, request: Request) -> str:
        """`gate` (slower than recomputing), `late` (past its deadline), or empty."""
        return self.arrivals.no_fetch.get(request.request_id, "")

    @property
    def num_pending(self) -> int:
        """Loads on their way."""
        return self.arrivals.num_pending

    @property
    def num_held(self) -> int:
        """Requests with loaded pages that are not admitted yet."""
        return self.arrivals.num_loaded
