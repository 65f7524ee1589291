"""Pages that came up go into a request's blocks, and are counted where they came from."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.cache.keys import TierKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.row_slices import Part
from workbench.cache.tier import KVHierarchy
from workbench.request import Request
from workbench.temporal.scheduling.loads import FetchCounters, Loaded


@dataclass
class PageFilling:
    """Writes pages where they belong (engine thread only)."""

    manager: KVCacheManager
    store: PageStore
    counters: FetchCounters
    recompute_s: Callable[[int], float | None]  # measured time to recompute n tokens
    hierarchy: KVHierarchy
    now_s: Callable[[], float]

    def write(
        self, request: Request, first: int, keys: Sequence[TierKey], loaded: Loaded
    ) -> TierKey | None:
        """Copy pages of `loaded` into the request's blocks from page `first` on, and verify them.

        Returns the key of the first that is damaged, where it ends; None if none is.
        """
        bad = None
        for at, key in enumerate(keys):
            if not self._write(self.parts(request, first + at), key, loaded):
                bad = key
                break
        self.store.settle()
        if bad is None:
            self.count([loaded.tiers[key] for key in keys])
        return bad

    def _write(self, parts: list[Part], key: TierKey, loaded: Loaded) -> bool:
        checksums, start_s = loaded.checksums.get(key, ()), self.now_s()
        if not self.store.write_verified(parts, loaded.pages[key], checksums):
            self.hierarchy.spoiled(loaded.job_id, key)
            return False
        if checksums:
            self.hierarchy.copied(loaded.job_id, key, self.now_s() - start_s)
        return True

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
