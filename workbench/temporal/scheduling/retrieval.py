"""Importance-aware retrieval: pages of little attention mass come late from a slow tier, or never.

    late: the request begins without them, and they are written into its table when they arrive
    skip: they are not read

Of the pages that only slow tiers have, those with the least carried mass are left out, as long as
they have at most `1 - share` of a query's attention together. A text's first tokens and its newest
(`retention.sink_tokens`, `retention.window_tokens`) and a run's last page are always read, and so
is what was never observed. The request's own pages are not indexed (decision 5). Source: the
survey's importance-aware retrieval (arXiv 2607.08057, MHO); mass as in H2O (arXiv 2306.14048).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.cache.holes import begin_with_holes, fill_hole
from workbench.cache.keys import PrefixKey, TierKey, coded_lineage
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.prefix_index import Row
from workbench.cache.request_blocks import RequestBlocks
from workbench.cache.tier import KVHierarchy, LoadResult
from workbench.request import Request
from workbench.temporal.scheduling.loads import FetchCounters, Loaded

ROUNDING = 1e-9  # of sums of masses
LATE_FOR_S = 60.0  # a page that takes longer counts as skipped


@dataclass(frozen=True)
class PartialStart:
    """What a request begins with: rows in HBM, then pages at hand with holes between them.

    `pages` and `holes` hold numbers in the text and keys.
    """

    rows: tuple[Row, ...]
    pages: tuple[tuple[int, TierKey], ...]
    holes: tuple[tuple[int, TierKey], ...]
    lineage: str
    num_computed_tokens: int

    @property
    def keys(self) -> list[TierKey]:
        """Of the pages that were loaded."""
        return [key for _, key in self.pages]


@dataclass(eq=False)
class _Late:
    """Pages on their way to a request that runs; they fit only the tables it had then."""

    request: Request
    blocks: RequestBlocks
    label: str  # of the cache's format
    pages: dict[TierKey, int]
    until_s: float


@dataclass
class Retrieval:
    """Chooses what is read, begins requests with holes, and fills those that are late.

    `prefixes`: whether prefixes may be used now. `on_late(request, page)`: one was filled.
    """

    manager: KVCacheManager
    store: PageStore
    hierarchy: KVHierarchy
    counters: FetchCounters
    now_s: Callable[[], float]
    on_load: Callable[[Request, dict[TierKey, str], float], None]
    how: str = "all"
    share: float = 1.0
    sink_tokens: int = 0
    window_tokens: int = 0
    prefixes: bool = True
    on_late: Callable[[Request, int], None] = lambda request, page: None
    _chosen: dict[str, tuple[str, set[TierKey]]] = field(default_factory=dict)
    _late: dict[int, _Late] = field(default_factory=dict)
    _due: _Late | None = None  # of the request that is being admitted

    def choose(
        self, request: Request, keys: Sequence[PrefixKey], first: int, lineage: str
    ) -> list[PrefixKey]:
        """Keys of a run to load now; `first`: the number of its first page in the text."""
        self._chosen.pop(request.request_id, None)
        if self.how == "all" or not keys:
            return list(keys)
        size, left = self.manager.block_size, 1.0 - self.share + ROUNDING
        newest = request.num_tokens - self.window_tokens
        masses = self.hierarchy.lookups.masses_below(keys[:-1])
        light = sorted(
            (mass, at)
            for at, mass in enumerate(masses)
            if mass is not None
            and (first + at) * size >= self.sink_tokens
            and (first + at + 1) * size <= newest
        )
        holes: set[TierKey] = set()
        for mass, at in light:
            left -= mass
            if left < 0:
                break
            holes.add(keys[at])
        if holes:
            self._chosen[request.request_id] = lineage, holes
        return [key for key in keys if key not in holes]

    def begin(self, request: Request, loaded: Loaded | None) -> PartialStart | None:
        """How a request begins with holes, if pages of it were left out and the rest is here."""
        chosen = self._chosen.get(request.request_id)
        if chosen is None or loaded is None or not self.prefixes:
            return None
        lineage, left_out = chosen
        hit = self.manager.find_prefix(request).full
        keys = self.manager.keys.row_keys(request, lineage)[: self.manager.most_hit_pages(request)]
        first = len(hit.rows)
        tag = self.hierarchy.codec_numerics
        goes_on = lineage == hit.lineage or (tag and lineage == coded_lineage(hit.lineage, tag))
        if first < loaded.first or (first and not goes_on):
            return None
        pages: list[tuple[int, TierKey]] = []
        holes: list[tuple[int, TierKey]] = []
        for page, key in enumerate(keys[first:], first):
            if key in loaded.pages:
                pages.append((page, key))
            elif key in left_out:
                holes.append((page, key))
            else:
                break
        if not pages or not holes or pages[-1][0] < holes[0][0]:
            return None  # no hole in front of anything that is here
        end = pages[-1][0] + 1
        behind = tuple(hole for hole in holes if hole[0] < end)
        named = coded_lineage(lineage, f"part{self.share:g}")
        return PartialStart(hit.rows, tuple(pages), behind, named, end * self.manager.block_size)

    def admit(self, request: Request, start: PartialStart) -> bool:
        """Give a request its tables with holes; False (no room) changes nothing."""
        manager = self.manager
        numbers = [page for page, _ in start.pages]
        if not begin_with_holes(manager, request, start.rows, numbers, start.lineage):
            return False
        manager.lookup.admitted(request, start.num_computed_tokens, len(start.rows))
        self.counters.num_left_out_pages += len(start.holes)
        if self.how == "late":
            self._due = _Late(
                request,
                manager.requests[request.request_id],
                manager.keys.format_label,
                {key: page for page, key in start.holes},
                self.now_s() + LATE_FOR_S,
            )
        return True

    def arrived(self, result: LoadResult) -> None:
        """Pages came up for a request that runs already: write them into its table."""
        late = self._late.pop(result.job_id, None)
        if late is None:
            return
        blocks = self.manager.requests.get(late.request.request_id)
        if blocks is not late.blocks or self.manager.keys.format_label != late.label:
            return  # preempted meanwhile, or in another format
        written = {
            key: tier
            for key, data, tier in zip(result.keys, result.pages, result.tiers, strict=True)
            if data is not None and self._fill(late, late.pages[key], data)
        }
        self.counters.num_late_pages += len(written)
        self.on_load(late.request, written, result.seconds)

    def _fill(self, late: _Late, page: int, data: np.ndarray) -> bool:
        manager = self.manager
        ids = fill_hole(manager, late.request, late.blocks, page)
        if ids is None:
            return False
        manager.pool.moved_step[list(ids)] = manager.pool.step
        manager.pool.last_used[list(ids)] = manager.pool.step
        self.store.write_row(manager.parts(ids), data)
        self.store.settle()
        self.on_late(late.request, page)
        return True

    def expire(self) -> None:
        """Give up what takes too long: it counts as skipped."""
        now_s = self.now_s()
        for job_id in [job for job, late in self._late.items() if late.until_s < now_s]:
            del self._late[job_id]
            self.hierarchy.cancel_load(job_id)

    def has_holes(self, request: Request) -> bool:
        """Whether a request's admission left pages out: asked while it is admitted."""
        blocks = self.manager.requests.get(request.request_id)
        return request.request_id in self._chosen and blocks is not None and not blocks.hashing

    def forget(self, request: Request, *, finished: bool) -> None:
        """A request is admitted; `finished`: what is on its way to it is not wanted any more.

        What is late is asked for now, when the pages it began with have given their buffers back.
        """
        self._chosen.pop(request.request_id, None)
        due, self._due = self._due, None
        if due is not None and due.request is request and not finished:
            self._late[self.hierarchy.submit_load(list(due.pages), compute_s=math.inf)] = due
        if finished:
            for job_id in [job for job, late in self._late.items() if late.request is request]:
                del self._late[job_id]
                self.hierarchy.cancel_load(job_id)

    @property
    def num_late(self) -> int:
        """Loads on their way to requests that run."""
        return len(self._late)
