"""Sealing: pages that are full go from their open class to the final one, and others' never do.

With a residual the newest full pages wait (KIVI's residual length, in pages; arXiv 2402.02750).
With outliers, the full pages whose keys are least alike stay as they are (ShadowKV's outlier
chunks; arXiv 2410.21465): the worst so far, so that what stays depends on the text before alone;
a page that is no longer among them is sealed then. They are private, as are all pages behind the
first of them while it is one: an index row has one class.
"""

from collections.abc import Callable

import numpy as np

from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.request import Request

# group, from blocks, to blocks -> how many of them, in order, were encoded
Recode = Callable[[int, list[int], list[int]], int]
# group, pages of its table -> how alike their keys are, [pages]; the least are outliers
Judge = Callable[[int, np.ndarray], np.ndarray]


def seal(manager: KVCacheManager, request: Request, recode: Recode, judge: Judge) -> None:
    """Put a request's full pages into the spares that were taken for them; `recode` has bytes."""
    blocks, pool = manager.requests[request.request_id], manager.pool
    for group, cls in enumerate(manager.classes):
        table = blocks.table[group, : manager.roles.num_final_pages(int(blocks.stored_len[group]))]
        sinks = manager.roles.num_sinks(blocks, group)
        pages = sinks + np.flatnonzero(pool.page_classes(table[sinks:]) != cls)
        if outliers := manager.roles.outlier_pages:
            pages = _without_outliers(pages, outliers, group, judge)
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


def seal_with_basis(
    manager: KVCacheManager, request: Request, recode: Recode, judge: Judge
) -> None:
    """Put full pages of a request that has a basis of its own into its class, while there is room.

    Nothing was taken for them before: all wait exactly until the basis is there, and what finds no
    room goes on waiting. What is freed by some makes room for others.
    """
    blocks, pool = manager.requests[request.request_id], manager.pool
    for group, cls in enumerate(manager.classes):
        table = blocks.table[group, : manager.roles.num_final_pages(int(blocks.stored_len[group]))]
        sinks = manager.roles.num_sinks(blocks, group)
        pages = sinks + np.flatnonzero(pool.page_classes(table[sinks:]) != cls)
        if outliers := manager.roles.outlier_pages:
            pages = _without_outliers(pages, outliers, group, judge)
        while len(pages) and (count := min(len(pages), pool.num_free(cls))):
            new = pool.allocate([(cls, count)])[0]
            pool.owner[new], pool.basis[new] = request.owner, blocks.basis
            old = [int(block) for block in table[pages[:count]]]
            done = recode(group, old, new)
            table[pages[:done]] = new[:done]
            pool.mass[new[:done]] = pool.mass[old[:done]]
            pool.free(old[:done] + new[done:])
            pages = pages[done:]
            if done < count:
                break


def _without_outliers(pages: np.ndarray, count: int, group: int, judge: Judge) -> np.ndarray:
    """Those that are sealed: all but the `count` whose keys are least alike, of equal ones the
    first.
    """
    if len(pages) <= count:
        return pages[:0]
    order = np.argsort(judge(group, pages), kind="stable")
    rest: np.ndarray = np.sort(pages[order[count:]])
    return rest


def drop_spares(manager: KVCacheManager) -> None:
    """Give back the pages that wait for a step that was not taken; it will ask again."""
    for blocks in manager.requests.values():
        for spares in blocks.spares:
            manager.pool.free(spares)
            spares.clear()
