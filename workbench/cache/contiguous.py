"""Contiguous allocation: each group of a request is one run of adjacent pages, reserved whole.

It is what paging replaced, kept for comparison: nothing is shared, and room that is free but not in
one piece cannot be used.
"""

import numpy as np

from workbench.cache.block_pool import BlockPool
from workbench.cache.block_state import UNASSIGNED


def take_run(pool: BlockPool, cls: int, count: int) -> list[int] | None:
    """`count` blocks of a class with adjacent positions, or None if no run is long enough."""
    free = free_positions(pool, cls)
    if not len(free):
        return None
    breaks = np.flatnonzero(np.diff(free[:, 0]) != 1) + 1
    for run in np.split(free, breaks):
        if len(run) >= count:
            return [pool.take(cls, int(block)) for block in run[:count, 1]]
    return None


def take_runs(pool: BlockPool, classes: list[int], count: int) -> list[list[int]] | None:
    """A run of `count` blocks for each group's class, or None; then nothing is taken."""
    taken: list[list[int]] = []
    for cls in classes:
        run = take_run(pool, cls, count)
        if run is None:
            for earlier in taken:
                pool.free(reversed(earlier))
            return None
        taken.append(run)
    return taken


def free_positions(pool: BlockPool, cls: int) -> np.ndarray:
    """[n, 2] of (position, block id) of blocks that hold nothing, in address order."""
    per_slab = pool.pages_per_slab(cls)
    slabs = np.flatnonzero((pool.slab_class == cls) | (pool.slab_class == UNASSIGNED))
    index = np.arange(per_slab)
    blocks = (slabs[:, None] * pool.stride + index).ravel()
    positions = (slabs[:, None] * per_slab + index).ravel()
    empty = (pool.ref_cnt[blocks] == 0) & ~pool.cached[blocks]
    return np.stack([positions[empty], blocks[empty]], axis=1)
