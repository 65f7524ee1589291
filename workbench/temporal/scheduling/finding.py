"""What the tiers hold of a prefix behind a hit in HBM, and how long a request waits to know it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from workbench.cache.keys import PrefixKey, TierKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.request_blocks import PrefixHit
from workbench.cache.tier import KVHierarchy, Lookup
from workbench.request import Request
from workbench.temporal.scheduling.lineages import Lineages
from workbench.temporal.scheduling.prefetch import Prefetch

MAX_WAITS = 200  # polls a request waits for a page that is still being written
BUSY = (Lookup.HIT_PENDING, Lookup.RETRY)


@dataclass
class Finding:
    """Asks for runs of pages; counts how often each request has waited for an answer.

    A request asks again at every step until it is admitted; a key counts as one lookup of it.
    """

    manager: KVCacheManager
    hierarchy: KVHierarchy
    lineages: Lineages
    prefetch: Prefetch
    _waits: dict[str, int] = field(default_factory=dict)
    _counted: dict[str, set[TierKey]] = field(default_factory=dict)

    def find(self, request: Request, hit: PrefixHit) -> tuple[list[PrefixKey], str] | None:
        """The longest run that continues the hit and its lineage; None: ask again next step."""
        first, most = len(hit.rows), self.manager.most_hit_pages(request)
        best: list[PrefixKey] = []
        best_lineage = hit.lineage
        asked: list[PrefixKey] = []  # the best run, and the key that ended it
        for lineage in self.lineages.behind(hit):
            keys = self.manager.keys.row_keys(request, lineage)[first:most]
            asks = self.prefetch.waits and keys and not self.hierarchy.lookups.know(keys)
            if keys and ((asks and self.wait(request)) or self.may_wait(request, keys[:1])):
                return None
            run = self._leading_hits(keys)
            if len(run) > len(best):
                best, best_lineage, asked = run, lineage, keys[: len(run) + 1]
            asked = asked or keys[:1]
        self.count(request, asked)
        return best, best_lineage

    def count(self, request: Request, keys: Sequence[TierKey]) -> None:
        """What is fetched of these keys is decided: each is one lookup of the request's."""
        counted = self._counted.setdefault(request.request_id, set())
        self.hierarchy.lookups.count([key for key in keys if key not in counted])
        counted.update(keys)

    def may_wait(self, request: Request, keys: Sequence[TierKey], *, swapped: bool = False) -> bool:
        """Whether to wait for keys that are being written, or that a tier is too busy for."""
        if not (self.prefetch.waits or swapped):
            return False
        return any(self.hierarchy.lookups.lookup(key) in BUSY for key in keys) and self.wait(
            request
        )

    def wait(self, request: Request) -> bool:
        """Wait once more, unless the request has waited for too long."""
        waits = self._waits.get(request.request_id, 0)
        if waits < MAX_WAITS:
            self._waits[request.request_id] = waits + 1
        return waits < MAX_WAITS

    def forget(self, request_id: str) -> None:
        """A request is admitted or over."""
        self._waits.pop(request_id, None)
        self._counted.pop(request_id, None)

    def _leading_hits(self, keys: list[PrefixKey]) -> list[PrefixKey]:
        for at, key in enumerate(keys):
            if self.hierarchy.lookups.lookup(key) is not Lookup.HIT:
                return keys[:at]
        return keys
