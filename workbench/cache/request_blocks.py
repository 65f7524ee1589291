"""The block tables of one request, and the prefix it found."""

from dataclasses import dataclass

import numpy as np

from workbench.cache.prefix_index import Row


class RequestBlocks:
    """Tables of one request: all groups in one int32 array, allocated in one call."""

    __slots__ = ("table", "num_pages", "stored_len", "page_pos", "lineage", "num_hashed", "hashing")

    def __init__(self, num_groups: int, max_pages: int, lineage: str) -> None:
        both = np.zeros((2, num_groups, max_pages), np.int32)
        self.table = both[0]  # [num_groups, max_pages] block ids
        self.page_pos = both[1]  # [num_groups, max_pages] position of each page's first token
        self.num_pages = np.zeros(num_groups, np.int32)
        self.stored_len = np.zeros(num_groups, np.int32)
        self.lineage = lineage
        self.num_hashed = 0  # leading blocks that were offered to the index
        self.hashing = True  # False once anything was evicted (decision 5)

    def blocks(self, group: int) -> np.ndarray:
        """Block ids of a group, in logical order."""
        return self.table[group, : self.num_pages[group]]


@dataclass(frozen=True)
class PrefixHit:
    """Leading rows found in HBM, all of one lineage."""

    rows: tuple[Row, ...]
    lineage: str
    num_tokens: int
