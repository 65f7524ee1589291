"""Tables with holes: a request that begins without some pages of its prefix, or gets them later.

    text          | 0  | 1  | 2  | 3  | 4  |        pages 1 and 3 are left out
    table at first| 0  | 2  | 4  |                  positions 0..15, 32..47, 64..79
    page 3 comes  | 0  | 2  | 3  | 4  |

What is computed behind a hole is never indexed, and says so in its numerics tag (decision 5).
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.prefix_index import Row
from workbench.cache.request_blocks import RequestBlocks
from workbench.cache.restoring import restore
from workbench.request import Request


def begin_with_holes(
    manager: KVCacheManager,
    request: Request,
    rows: Sequence[Row],
    pages: Sequence[int],
    lineage: str,
) -> bool:
    """Tables with shared rows first and then fresh ones for `pages`, ascending numbers in the text.

    The caller writes the fresh pages' bytes. Beside others there has to be room for the rest of the
    request too, as where a whole prompt is admitted. False changes nothing.
    """
    size, roles, count = manager.block_size, manager.roles, len(rows) + len(pages)
    needs: Counter[int] = Counter()
    for page in pages:
        needs.update(roles.final_row(page))
    if manager.requests:
        for cls in roles.full:
            needs[cls] += max(0, manager.num_pages_for(request.num_tokens) - count)
    held = [block for row in rows for block in row.blocks]
    if not manager.pool.can_allocate(needs, held):
        return False
    lines = [[manager.pool.page_class(block) for block in row.blocks] for row in rows]
    lines += [roles.final_row(page) for page in pages]
    numbers = np.array([*range(len(rows)), *pages])
    positions = (numbers[:, None] * size + np.arange(size)).ravel()
    num_groups = len(manager.classes)
    return restore(
        manager,
        request,
        [*rows, *[None] * len(pages)],
        classes=np.array(lines).T,
        stored_len=np.full(num_groups, count * size, np.int32),
        pos=np.tile(positions.astype(np.int32), (num_groups, 1)),
        log_count=None,
        lineage=lineage,
        hashing=False,
    )


def fill_hole(
    manager: KVCacheManager, request: Request, blocks: RequestBlocks, page: int
) -> tuple[int, ...] | None:
    """A fresh block a group for a page of the text that was left out; the caller writes its bytes.

    None, and nothing is changed, where there is no room, where the page is there, or where single
    tokens were dropped, so that pages no longer begin where the text's do.
    """
    size, pool = manager.block_size, manager.pool
    places = [
        int(np.searchsorted(blocks.positions(group), page * size))
        for group in range(len(manager.classes))
    ]
    classes = manager.roles.final_row(page)
    if any(place % size for place in places) or not pool.can_allocate(Counter(classes)):
        return None
    if any(
        place < blocks.stored_len[group] and blocks.pos[group, place] == page * size
        for group, place in enumerate(places)
    ):
        return None
    taken = [found[0] for found in pool.allocate([(cls, 1) for cls in classes])]
    for group, (place, block) in enumerate(zip(places, taken, strict=True)):
        blocks.put_page(group, place // size, block, page * size)
        pool.owner[block] = request.owner
    return tuple(taken)
