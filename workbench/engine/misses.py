"""Why a request's prefix hit ended where it did."""

from collections import OrderedDict

import numpy as np

from workbench.cache.keys import tagged_key
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.request_blocks import PrefixHit
from workbench.request import MissReason, Request

REMEMBERED_PROMPTS = 64


class MissExplainer:
    """Remembers the newest prompts, to name the first differing token."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, tuple[str, np.ndarray]] = OrderedDict()

    def remember(self, request: Request) -> None:
        """Keep the tokens of a request for later comparison."""
        self._prompts[request.request_id] = (
            request.spec.salt,
            np.array(request.token_ids, np.int64),
        )
        if len(self._prompts) > REMEMBERED_PROMPTS:
            self._prompts.popitem(last=False)

    def explain(
        self,
        request: Request,
        hit: PrefixHit,
        num_loaded_tokens: int,
        manager: KVCacheManager,
        *,
        caching: bool,
        not_fetched: str,
    ) -> MissReason:
        """The most specific reason that holds."""
        size = manager.block_size
        known = hit.num_tokens + num_loaded_tokens
        most = (request.num_tokens - 1) // size
        if not caching:
            return MissReason(kind="off")
        if manager.lookup.is_unmarked(request, known):
            expired = manager.lifetimes.has_expired(manager.keys.chain(request))
            return MissReason(kind="expired" if expired else "unmarked", token_index=known)
        if most == 0:
            return MissReason(kind="short", token_index=request.num_tokens)
        if known >= most * size:
            return MissReason(kind="full", token_index=known)
        if not_fetched:
            return MissReason(kind=not_fetched, token_index=known)
        chain_key = manager.keys.chain(request)[known // size]
        for lineage in manager.keys.lineages:
            step = manager.pool.index.evicted_at(tagged_key(chain_key, lineage))
            if step is not None:
                return MissReason(kind="evicted", token_index=known, step=step)
        for lineage in manager.keys.resident_lineages:
            if manager.pool.index.get(tagged_key(chain_key, lineage)) is not None:
                return MissReason(kind="tag", token_index=known, detail=lineage)
        return self._by_comparison(request, known, size)

    def _by_comparison(self, request: Request, known: int, size: int) -> MissReason:
        tokens = np.array(request.token_ids, np.int64)
        longest, other, foreign = 0, "", ""
        for request_id, (salt, prompt) in self._prompts.items():
            if request_id == request.request_id:
                continue
            length = min(len(tokens), len(prompt))
            different = np.flatnonzero(tokens[:length] != prompt[:length])
            common = int(different[0]) if len(different) else length
            if common > longest:
                longest = common
                other, foreign = request_id, salt
        if longest == 0:
            return MissReason(kind="first")
        if foreign != request.spec.salt and longest > known:
            return MissReason(kind="tag", token_index=longest, detail="salt")
        if known <= longest < (known // size + 1) * size:  # else the same text was not cached
            return MissReason(kind="differs", token_index=longest, detail=other)
        return MissReason(kind="first", token_index=known)
