"""What is known of each block of an arena, as arrays by block id."""

import numpy as np

from workbench.cache.prefix_index import Row
from workbench.snapshot import NO_OWNER

UNASSIGNED = -1
LONG_AGO = -(10**6)  # a step before any other


class BlockState:
    """Arrays of `num_slabs * stride` blocks; a block's id is `slab * stride + index`."""

    def __init__(self, num_slabs: int, stride: int) -> None:
        self.num_slabs = num_slabs
        self.stride = stride
        size = num_slabs * self.stride
        self.ref_cnt = np.zeros(size, np.int32)
        self.pins = np.zeros(size, np.int32)
        self.offset = np.full(size, -1, np.int64)  # bytes into the arena
        self.generation = np.zeros(size, np.int32)
        self.last_used = np.zeros(size, np.int32)
        self.owner = np.full(size, NO_OWNER, np.uint8)
        self.basis = np.zeros(size, np.int32)  # number of the basis of its keys, 0: the shared one
        self.evicted_step = np.full(size, LONG_AGO, np.int32)
        self.moved_step = np.full(size, LONG_AGO, np.int32)  # came up from a tier
        self.mass = np.zeros(size, np.float32)
        self.cached = np.zeros(size, bool)
        self.row_of: list[Row | None] = [None] * size
        self.slab_class = np.full(num_slabs, UNASSIGNED, np.int32)

    def page_class(self, block: int) -> int:
        """Class of a block's slab."""
        return int(self.slab_class[block // self.stride])

    def page_classes(self, blocks: np.ndarray) -> np.ndarray:
        """Classes of many blocks at once, int32 like `blocks`."""
        found: np.ndarray = self.slab_class[blocks // self.stride]
        return found

    def page_kinds(self, blocks: np.ndarray) -> np.ndarray:
        """What many blocks are decoded by, int64 alike: class and basis as one (`kind_parts`)."""
        kinds: np.ndarray = self.page_classes(blocks) + (self.basis[blocks].astype(np.int64) << 16)
        return kinds


def kind_parts(kind: int) -> tuple[int, int]:
    """Class and basis of a kind of pages."""
    return kind & 0xFFFF, kind >> 16
