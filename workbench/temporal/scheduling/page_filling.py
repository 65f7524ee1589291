"""Pages that came up go into a request's blocks, and are counted where they came from."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.row_slices import Part
from workbench.request import Request
from workbench.temporal.scheduling.loads import FetchCounters, Loaded


@dataclass
class PageFilling:
    """Writes pages where they belong (engine thread only)."""

    manager: KVCacheManager
    store: PageStore
    counters: FetchCounters
    recompute_s: Callable[[int], float | None]  # measured time to recompute n tokens

    def write(
        self, request: Request, first: int, pages: Sequence[np.ndarray], loaded: Loaded
    ) -> None:
        """Copy pages of `loaded` into the request's blocks from page `first` on."""
        for at, page in enumerate(pages):
            self.store.write_row(self.parts(request, first + at), page)
        self.store.settle()
        self.count([loaded.tiers[id(page)] for page in pages])

    def parts(self, request: Request, page: int) -> list[Part]:
        """Where a page of a request lies that moves up at this step."""
        ids = self.manager.requests[request.request_id].row_at(page)
        self.manager.pool.moved_step[[i for i in ids if i >= 0]] = self.manager.pool.step
        return self.manager.parts(ids)

    def count(self, tiers: Sequence[str]) -> None:
        """Count fetched pages that a request has taken, each from its tier."""
        block_tokens = self.manager.block_size
        each_s = self.recompute_s(block_tokens) or 0.0
        self.counters.used(Counter(tiers), block_tokens, each_s)
