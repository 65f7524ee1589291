"""What takes tokens away from a running request: whole pages, or slots so that the rest is packed.

Pages that others share, or that can be found by their key, are never changed: an eviction takes
them out of this request's table only. Blocks computed from then on are never indexed.

    table before | 0 1 2 3 | 4 5 6 7 | 8 9 . . |      keep 0 1 2 3 5 8 9
    table after  | 0 1 2 3 | 5 8 9 . |                the page behind is free
"""

from collections.abc import Callable

import numpy as np

from workbench.cache.block_pool import BlockPool
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.request import Request

# copies bytes: index of the first page, source blocks from there on, slots among them, targets
Move = Callable[[int, list[int], np.ndarray, list[int]], None]


def evict_pages(manager: KVCacheManager, request: Request, group: int, pages: list[int]) -> int:
    """Take full pages out of one group's table; returns how many were freed."""
    blocks, pool = manager.requests[request.request_id], manager.pool
    last_full = int(blocks.stored_len[group]) // manager.block_size
    drop = sorted(set(pages))
    if drop and not 0 <= drop[0] <= drop[-1] < last_full:
        raise ValueError(f"pages {drop} are not all full pages of group {group}")
    victims = blocks.drop_pages(group, drop)
    blocks.hashing = False
    freed = sum(pool.ref_cnt[block] == 1 for block in victims)
    pool.free(victims)
    return int(freed)


def keep_slots(
    manager: KVCacheManager, request: Request, group: int, kept: np.ndarray, move: Move
) -> int | None:
    """Keep only some slots of one group, packed into fewer pages; returns how many were freed.

    `kept` int ascending. `move` copies bytes, and is called before the tables change.
    Pages in front of the first gap stay; shared and hashed ones behind it are copied, not changed.
    Without room for copies, hashed pages of this request alone leave the index and are written.
    None, and nothing is changed, where no page comes free or shared ones cannot be copied.
    """
    blocks, pool, size = manager.requests[request.request_id], manager.pool, manager.block_size
    gaps = np.flatnonzero(kept != np.arange(len(kept)))
    first = (int(gaps[0]) if len(gaps) else len(kept)) // size
    old = [int(block) for block in blocks.blocks(group)[first:]]
    num_new = manager.num_pages_for(len(kept)) - first
    target = None if num_new >= len(old) else _targets(pool, old, num_new, manager.classes[group])
    if target is None:
        return None
    pool.owner[target] = request.owner  # one that another wrote, and whose row is gone, is written
    move(first, old, kept[first * size :] - first * size, target)
    blocks.replace_tail(group, first, target, kept)
    blocks.number_slots(request.num_computed_tokens)
    blocks.hashing = False
    victims = [block for block in old if block not in set(target)]
    freed = sum(pool.ref_cnt[block] == 1 for block in victims) - len(set(target).difference(old))
    pool.free(victims)
    return int(freed)


def _targets(pool: BlockPool, old: list[int], count: int, cls: int) -> list[int] | None:
    """Blocks to pack into: those of `old` that may be written, then fresh ones; None: no room."""
    own = [block for block in old if pool.ref_cnt[block] == 1]
    found = [block for block in own if not pool.cached[block]][:count]
    if not pool.can_allocate({cls: count - len(found)}):
        found = own[:count]
        if not pool.can_allocate({cls: count - len(found)}):
            return None
        for row in dict.fromkeys(pool.row_of[block] for block in found):
            if row is not None:
                pool.drop(row)
    return found + pool.allocate([(cls, count - len(found))])[0]
