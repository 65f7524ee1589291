"""What takes tokens away from a running request: whole pages, or slots so that the rest is packed.

Pages that others share, or that can be found by their key, are never changed: an eviction takes
them out of this request's table only. Blocks computed from then on are never indexed.
"""

from collections.abc import Callable

import numpy as np

from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.request import Request

Move = Callable[[list[int], np.ndarray, list[int]], None]  # source blocks, their slots, targets


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

    `kept` int ascending. `move(source blocks, slots among them, target blocks)` copies bytes.
    Pages in front of the first gap stay; shared and hashed ones behind it are copied, not changed.
    None, and nothing is changed, where no page comes free or there is no room for those copies.
    """
    blocks, pool, size = manager.requests[request.request_id], manager.pool, manager.block_size
    gaps = np.flatnonzero(kept != np.arange(len(kept)))
    first = (int(gaps[0]) if len(gaps) else len(kept)) // size
    old = [int(block) for block in blocks.blocks(group)[first:]]
    num_new = manager.num_pages_for(len(kept)) - first
    writable = [b for b in old if pool.ref_cnt[b] == 1 and not pool.cached[b]]
    target = writable[:num_new]
    cls, missing = manager.classes[group], num_new - len(target)
    if num_new >= len(old) or not pool.can_allocate({cls: missing}):
        return None
    target += pool.allocate([(cls, missing)])[0]
    pool.owner[target] = request.owner  # one that another wrote, and whose row is gone, is written
    move(old, kept[first * size :] - first * size, target)
    blocks.replace_tail(group, first, target, kept)
    blocks.number_slots(request.num_computed_tokens)
    blocks.hashing = False
    victims = [block for block in old if block not in set(target)]
    freed = sum(pool.ref_cnt[block] == 1 for block in victims) - missing
    pool.free(victims)
    return int(freed)
