"""The block tables of one request, and the prefix it found.

block table of a request, one row a group:      [ b0 | b1 | b2 | b3 |  ... max_pages ]
slots stored in them (stored_len):               16   16   16    5
position of each slot (pos):                      0..15  16..31  64..79  80..84     (32..63 evicted)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.cache.prefix_index import Row


class RequestBlocks:
    """Tables of one request: all groups in one int32 array, allocated in one call."""

    __slots__ = (
        "table", "pos", "num_pages", "stored_len", "block_size", "lineage", "num_hashed", "hashing",
        "spares", "log_count", "basis",
    )  # fmt: skip

    def __init__(self, num_groups: int, max_pages: int, block_size: int, lineage: str) -> None:
        both = np.zeros((num_groups, max_pages * (1 + block_size)), np.int32)
        self.table = both[:, :max_pages]  # [num_groups, max_pages] block ids
        self.pos = both[:, max_pages:]  # [num_groups, max_pages * block_size], strictly increasing
        self.num_pages = np.zeros(num_groups, np.int32)
        self.stored_len = np.zeros(num_groups, np.int32)
        self.block_size = block_size
        self.lineage = lineage
        self.num_hashed = 0  # leading blocks that were offered to the index
        self.basis = 0  # number of the basis of its own keys, once it has one
        self.hashing = True  # False once anything was evicted (decision 5)
        self.log_count: np.ndarray | None = (
            None  # float32 like pos: log of the tokens a slot stands for
        )
        self.spares: list[list[int]] = [[] for _ in range(num_groups)]  # for pages about to fill

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

    def positions(self, group: int) -> np.ndarray:
        """Positions of a group's stored slots, int32 [stored_len]."""
        return self.pos[group, : self.stored_len[group]]

    def num_used_pages(self) -> np.ndarray:
        """Pages of each group that hold at least one slot, int32 [num_groups]."""
        return -(-self.stored_len // self.block_size)

    def begin_with(self, rows: Sequence[Row]) -> None:
        """Start an empty table with full rows that are shared with others."""
        for group in range(len(self.table)):
            self.table[group, : len(rows)] = [row.blocks[group] for row in rows]
        count = len(rows) * self.block_size
        self.pos[:, :count] = np.arange(count)
        self.num_pages[:] = self.num_hashed = len(rows)
        self.stored_len[:] = count

    def num_first_pages(self, group: int, most: int) -> int:
        """Leading pages of a group that are among the `most` first of the text."""
        size, held = self.block_size, min(most, int(self.num_pages[group]))
        return int((self.pos[group, : held * size : size] < most * size).sum())

    def held(self, group: int) -> list[int]:
        """Every block a group holds a reference to: its table's and its spares."""
        return [int(block) for block in self.blocks(group)] + self.spares[group]

    def append(self, group: int, taken: list[int]) -> None:
        """Put fresh blocks behind a group's others."""
        start = int(self.num_pages[group])
        self.table[group, start : start + len(taken)] = taken
        self.num_pages[group] = start + len(taken)

    def number_slots(self, num_computed_tokens: int) -> None:
        """Positions of the slots that are still empty: the next tokens', in order."""
        for group, stored in enumerate(self.stored_len):
            end = int(self.num_pages[group]) * self.block_size
            self.pos[group, stored:end] = num_computed_tokens + np.arange(end - stored)

    def drop_pages(self, group: int, pages: list[int]) -> list[int]:
        """Take full pages out of one group's table and close the gaps; returns their blocks."""
        victims = [int(block) for block in self.table[group, pages]]
        keep = np.delete(np.arange(int(self.num_pages[group])), pages)
        slots = (keep[:, None] * self.block_size + np.arange(self.block_size)).ravel()
        self.table[group, : len(keep)] = self.table[group, keep]
        self.pos[group, : len(slots)] = self.pos[group, slots]
        self._keep_counts(group, slots)
        self.num_pages[group] = len(keep)
        self.stored_len[group] -= len(pages) * self.block_size
        return victims

    def put_page(self, group: int, at: int, block: int, first_token: int) -> None:
        """Put a full page in front of the `at`-th of a group; its positions follow each other."""
        pages, size = int(self.num_pages[group]), self.block_size
        slot, end = at * size, pages * size
        self.table[group, at + 1 : pages + 1] = self.table[group, at:pages]
        self.pos[group, slot + size : end + size] = self.pos[group, slot:end]
        self.table[group, at] = block
        self.pos[group, slot : slot + size] = first_token + np.arange(size)
        if self.log_count is not None:
            self.log_count[group, slot + size : end + size] = self.log_count[group, slot:end]
            self.log_count[group, slot : slot + size] = 0.0
        self.num_pages[group] += 1
        self.stored_len[group] += size

    def replace_tail(self, group: int, first: int, blocks: list[int], kept: np.ndarray) -> None:
        """Pages from `first` on become `blocks`, and only the slots `kept` are stored."""
        end = first + len(blocks)
        self.table[group, first:end] = blocks
        self.pos[group, : len(kept)] = self.pos[group, kept]
        self._keep_counts(group, kept)
        self.num_pages[group] = end
        self.stored_len[group] = len(kept)

    def counts(self, group: int) -> np.ndarray:
        """Tokens that each stored slot of a group stands for, float32 [stored_len]."""
        stored = int(self.stored_len[group])
        if self.log_count is None:
            return np.ones(stored, np.float32)
        counts: np.ndarray = np.exp(self.log_count[group, :stored])
        return counts

    def set_counts(self, group: int, first: int, counts: np.ndarray) -> None:
        """Slots from `first` on stand for so many tokens."""
        if self.log_count is None:
            self.log_count = np.zeros(self.pos.shape, np.float32)
        self.log_count[group, first : first + len(counts)] = np.log(counts)

    def _keep_counts(self, group: int, kept: np.ndarray) -> None:
        if self.log_count is not None:
            self.log_count[group, : len(kept)] = self.log_count[group, kept]
            self.log_count[group, len(kept) :] = 0.0


@dataclass(frozen=True)
class PrefixHit:
    """Leading rows found in HBM, all of one lineage, and maybe the beginning of one block more.

    `num_tokens` counts both. The block `partial` is somebody else's: its first `num_partial_tokens`
    slots are copied.
    """

    rows: tuple[Row, ...]
    lineage: str
    num_tokens: int
    partial: Row | None = None
    num_partial_tokens: int = 0

    @property
    def full(self) -> "PrefixHit":
        """The full rows alone."""
        num_full = self.num_tokens - self.num_partial_tokens
        return PrefixHit(self.rows, self.lineage, num_full) if self.partial else self
