"""Tables of a request that comes back from a slower tier with all that it had."""

import itertools
from collections import Counter

import numpy as np

from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.prefix_index import Row
from workbench.request import Request


def restore(
    manager: KVCacheManager,
    request: Request,
    rows: list[Row | None],
    *,
    classes: np.ndarray,
    stored_len: np.ndarray,
    pos: np.ndarray,
    log_count: np.ndarray | None,
    lineage: str,
    hashing: bool,
) -> bool:
    """Tables of a swapped request: shared rows again, fresh pages where `rows` is None.

    `classes` int [num_groups, pages]: of each page, -1 where a group has fewer. The caller then
    writes the fresh pages' bytes. False changes nothing.
    """
    pool = manager.pool
    wanted = [
        [int(cls) for cls, row in zip(line, rows, strict=True) if row is None and cls >= 0]
        for line in classes
    ]
    shared = [block for row in rows if row is not None for block in row.blocks]
    if not pool.can_allocate(Counter(itertools.chain(*wanted)), shared):
        return False
    blocks = manager.new_blocks(lineage)
    for block in shared:
        pool.touch(block)
    taken = iter(pool.allocate([(cls, 1) for cls in itertools.chain(*wanted)]))
    for group, line in enumerate(classes):
        count = int((line >= 0).sum())
        for page, row in enumerate(rows[:count]):
            block = next(taken)[0] if row is None else row.blocks[group]
            blocks.table[group, page] = block
            pool.owner[block] = request.owner
        blocks.num_pages[group] = count
    blocks.stored_len[:] = stored_len
    blocks.pos[:, : pos.shape[1]] = pos
    blocks.hashing, blocks.log_count = hashing, log_count
    blocks.num_hashed = next((at for at, row in enumerate(rows) if row is None), len(rows))
    manager.requests[request.request_id] = blocks
    return True
