"""Which cached block of a class goes next."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.cache.block_pool import BlockPool


def next_victim(pool: "BlockPool", cls: int, oldest: int) -> int:
    """A cached block without reference; `oldest` is the head of its class's free list."""
    if pool.ranked is not None:
        return pool.ranked.victim(cls)
    if not pool.index.leaves_first:
        return oldest
    return next((block for block in pool.walk(cls) if is_leaf(pool, block)), oldest)


def is_leaf(pool: "BlockPool", block: int) -> bool:
    """Whether no cached row continues the one that a block belongs to."""
    row = pool.row_of[block]
    return row is not None and not pool.index.num_children(row)
