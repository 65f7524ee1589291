"""The block tables of one request, and the prefix it found.

block table of a request, one row a group:      [ b0 | b1 | b2 | b3 |  ... max_pages ]
slots stored in them (stored_len):               16   16   16    5
position of each page's first token (page_pos):   0   16   64   80      (pages 32, 48 evicted)
"""

from collections.abc import Sequence
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

    def all_blocks(self) -> np.ndarray:
        """Block ids of all groups, group by group."""
        return self.table[np.arange(self.table.shape[1]) < self.num_pages[:, None]]

    def row_at(self, page: int) -> tuple[int, ...]:
        """Block of each group at a page index; -1 where a group has fewer pages."""
        return tuple(
            int(block) if page < count else -1
            for block, count in zip(self.table[:, page], self.num_pages, strict=True)
        )

    def begin_with(self, rows: Sequence[Row], block_size: int) -> None:
        """Start an empty table with full rows that are shared with others."""
        for group in range(len(self.table)):
            self.table[group, : len(rows)] = [row.blocks[group] for row in rows]
        self.page_pos[:, : len(rows)] = block_size * np.arange(len(rows))
        self.num_pages[:] = self.num_hashed = len(rows)
        self.stored_len[:] = len(rows) * block_size

    def append(self, group: int, taken: list[int]) -> None:
        """Put fresh blocks behind a group's others."""
        start = int(self.num_pages[group])
        self.table[group, start : start + len(taken)] = taken
        self.num_pages[group] = start + len(taken)

    def number_pages(self, num_computed_tokens: int, block_size: int) -> None:
        """Positions of the page that is being filled and of those behind it.

        They follow from the request's own length, so that evicted pages leave a gap.
        """
        for group in range(len(self.table)):
            stored, last = int(self.stored_len[group]), int(self.num_pages[group])
            current = stored // block_size
            base = num_computed_tokens - stored % block_size
            self.page_pos[group, current:last] = base + block_size * np.arange(last - current)

    def drop_pages(self, group: int, pages: list[int], block_size: int) -> list[int]:
        """Take full pages out of one group's table and close the gaps; returns their blocks."""
        victims = [int(block) for block in self.table[group, pages]]
        keep = np.delete(np.arange(int(self.num_pages[group])), pages)
        self.table[group, : len(keep)] = self.table[group, keep]
        self.page_pos[group, : len(keep)] = self.page_pos[group, keep]
        self.num_pages[group] = len(keep)
        self.stored_len[group] -= len(pages) * block_size
        return victims


@dataclass(frozen=True)
class PrefixHit:
    """Leading rows found in HBM, all of one lineage."""

    rows: tuple[Row, ...]
    lineage: str
    num_tokens: int
