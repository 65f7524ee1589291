"""Sealing: pages that are full go from their open class to the final one, and others' never do.

With a residual the newest full pages wait (KIVI's residual length, in pages; arXiv 2402.02750).
"""

from collections.abc import Callable

import numpy as np

from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.request import Request

# group, from blocks, to blocks -> how many of them, in order, were encoded
Recode = Callable[[int, list[int], list[int]], int]


def seal(manager: KVCacheManager, request: Request, recode: Recode) -> None:
    """Put a request's full pages into the spares that were taken for them; `recode` has bytes."""
    blocks, pool = manager.requests[request.request_id], manager.pool
    for group, cls in enumerate(manager.classes):
        table = blocks.table[group, : manager.roles.num_final_pages(int(blocks.stored_len[group]))]
        sinks = manager.roles.num_sinks(blocks, group)
        pages = sinks + np.flatnonzero(pool.page_classes(table[sinks:]) != cls)
        if not len(pages):
            continue
        old = [int(block) for block in table[pages]]
        spares = blocks.spares[group]
        done = recode(group, old, spares[: len(pages)])
        new, blocks.spares[group] = spares[:done], spares[done:]
        old, pages = old[:done], pages[:done]
        blocks.table[group, pages] = new
        pool.mass[new] = pool.mass[old]
        pool.free(old)


def drop_spares(manager: KVCacheManager) -> None:
    """Give back the pages that wait for a step that was not taken; it will ask again."""
    for blocks in manager.requests.values():
        for spares in blocks.spares:
            manager.pool.free(spares)
            spares.clear()
