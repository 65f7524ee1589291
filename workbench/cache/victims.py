"""Which cached block of a class goes next: the order's choice among those that nobody keeps."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from workbench.cache.block_pool import BlockPool


def next_victim(pool: "BlockPool", cls: int, oldest: int) -> int:
    """A cached block without reference; `oldest` is the head of its class's free list.

    Blocks of prefixes that live (prompt caching) go only if no other can.
    """
    keeping = pool.lifetimes is not None and not pool.lifetimes.is_empty
    if pool.ranked is not None:
        return pool.ranked.victim(cls, kept_mask(pool) if keeping else None)
    leaves = pool.index.leaves_first
    if not leaves and not keeping:
        return oldest
    fallback = None
    for block in pool.walk(cls):
        if keeping and is_kept(pool, block):
            continue
        if not leaves or is_leaf(pool, block):
            return block
        fallback = block if fallback is None else fallback
    if fallback is not None:
        return fallback
    return next((block for block in pool.walk(cls) if not leaves or is_leaf(pool, block)), oldest)


def is_leaf(pool: "BlockPool", block: int) -> bool:
    """Whether no cached row continues the one that a block belongs to."""
    row = pool.row_of[block]
    return row is not None and not pool.index.num_children(row)


def is_kept(pool: "BlockPool", block: int) -> bool:
    """Whether a block belongs to a prefix that somebody asked to keep, and that lives."""
    row = pool.row_of[block]
    return row is not None and pool.lifetimes is not None and pool.lifetimes.keeps(row.chain_key)


def kept_mask(pool: "BlockPool") -> np.ndarray:
    """Of every block whether it is kept, bool [num_blocks]."""
    mask = np.zeros(len(pool.cached), bool)
    for block in np.flatnonzero(pool.cached):
        mask[block] = is_kept(pool, int(block))
    return mask


def spares_kept(pool: "BlockPool", cls: int) -> bool:
    """Whether another class's slab goes first: all blocks of this one are kept, and not its."""
    if pool.lifetimes is None or pool.lifetimes.is_empty:
        return False
    if not all(is_kept(pool, block) for block in pool.walk(cls) if pool.cached[block]):
        return False
    return not bool(holds_kept(pool, pool.reclaimable(cls)).all())


def holds_kept(pool: "BlockPool", slabs: np.ndarray) -> np.ndarray:
    """Of each slab whether a block in it is kept, bool like `slabs`."""
    if pool.lifetimes is None or pool.lifetimes.is_empty:
        return np.zeros(len(slabs), bool)
    kept: np.ndarray = kept_mask(pool).reshape(pool.num_slabs, pool.stride)[slabs].any(axis=1)
    return kept


def oldest_slab(pool: "BlockPool", slabs: np.ndarray) -> int:
    """The least recently used of some slabs, those without kept blocks first."""
    ages = pool.last_used.reshape(pool.num_slabs, pool.stride)[slabs].max(axis=1)
    return int(slabs[np.lexsort((ages, holds_kept(pool, slabs)))[0]])


def kept_last(pool: "BlockPool", order: list[int]) -> list[int]:
    """An order of eviction with the kept blocks behind the others."""
    if pool.lifetimes is None or pool.lifetimes.is_empty:
        return order
    return sorted(order, key=lambda block: is_kept(pool, block))
