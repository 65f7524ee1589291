"""Swapped requests: the pages of a preempted one as private entries below HBM."""

from dataclasses import dataclass, field

import numpy as np

from workbench.cache.keys import PrivateKey, TierKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.prefix_index import Row
from workbench.cache.request_blocks import RequestBlocks
from workbench.cache.restoring import restore
from workbench.cache.row_slices import RowSlices
from workbench.cache.tier import KVHierarchy
from workbench.request import Request


@dataclass
class SwapRecord:
    """Where the pages of a preempted request went: a key each, in logical order."""

    keys: list[TierKey]
    classes: np.ndarray  # [num_groups, pages], -1 where a group has fewer pages
    stored_len: np.ndarray
    pos: np.ndarray
    log_count: np.ndarray | None
    lineage: str
    hashing: bool
    num_computed_tokens: int


@dataclass
class SwapSpace:
    """Owns what preempted requests left in the hierarchy; it dies with its request."""

    manager: KVCacheManager
    store: PageStore
    hierarchy: KVHierarchy
    _records: dict[str, SwapRecord] = field(default_factory=dict)

    def swap_out(self, request: Request, slices: RowSlices) -> int:
        """Copy a request's own pages down as private entries; returns how many went.

        Only pages with one reference move; shared ones stay and are found by their key again. If
        no tier takes one of them, none goes.
        """
        blocks = self.manager.requests.get(request.request_id)
        if blocks is None or self.manager.contiguous or blocks.basis:
            return 0  # pages in a basis of their own are of no use once it is gone
        pool = self.manager.pool
        used = blocks.num_used_pages()
        num_pages = int(used.max(initial=0))
        keys: list[TierKey] = []
        moved = 0
        for page in range(num_pages):
            ids = tuple(
                block if page < count else -1
                for block, count in zip(blocks.row_at(page), used, strict=True)
            )
            row = pool.row_of[ids[0]] if ids[0] >= 0 else None
            # after evictions the groups' pages no longer line up, and no row is theirs as a whole
            if row is not None and row.blocks == ids and any(pool.ref_cnt[i] > 1 for i in ids):
                keys.append(row.key)
                continue
            key = PrivateKey(request.request_id, request.num_preemptions, 0, page)
            parts = self.manager.parts(ids)
            if not self.hierarchy.store(key, self.store.read_row(parts), slices.count(parts)):
                self.hierarchy.drop_private(request.request_id)
                return 0
            keys.append(key)
            moved += 1
        self._records[request.request_id] = SwapRecord(
            keys,
            self._classes(blocks, used),
            blocks.stored_len.copy(),
            blocks.pos[:, : num_pages * self.manager.block_size].copy(),
            None if blocks.log_count is None else blocks.log_count.copy(),
            blocks.lineage,
            blocks.hashing,
            request.num_computed_tokens,
        )
        return moved

    def record(self, request: Request) -> SwapRecord | None:
        """Where a request's pages went, if it was swapped."""
        return self._records.get(request.request_id)

    def keys_below(self, record: SwapRecord) -> list[TierKey]:
        """Keys of a swapped request that are not in HBM: they have to be loaded."""
        return [key for key in record.keys if self._row(key) is None]

    def restore(self, request: Request, record: SwapRecord) -> dict[int, TierKey] | None:
        """Give a swapped request tables again; None (no room) changes nothing.

        Returns the pages whose bytes the caller has to write: page -> key.
        """
        rows = [self._row(key) for key in record.keys]
        admitted = restore(
            self.manager,
            request,
            rows,
            classes=record.classes,
            stored_len=record.stored_len,
            pos=record.pos,
            log_count=record.log_count,
            lineage=record.lineage,
            hashing=record.hashing,
        )
        if not admitted:
            return None
        pairs = zip(record.keys, rows, strict=True)
        return {page: key for page, (key, row) in enumerate(pairs) if row is None}

    def forget(self, request: Request) -> None:
        """A request is back in HBM, or gone: drop what it left below."""
        if self._records.pop(request.request_id, None) is not None:
            self.hierarchy.drop_private(request.request_id)

    def _classes(self, blocks: RequestBlocks, used: np.ndarray) -> np.ndarray:
        width = int(used.max(initial=0))
        classes = self.manager.pool.page_classes(blocks.table[:, :width])
        return np.where(np.arange(width) < used[:, None], classes, -1)

    def _row(self, key: TierKey) -> Row | None:
        return self.manager.pool.index.get(key) if isinstance(key, bytes) else None
