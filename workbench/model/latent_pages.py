"""Pages of latent vectors: one row a token and layer, no K and V planes, no heads.

arena  [pages, layers, slots, latent + rope]        a sequence's table: page numbers in order
"""

import torch
from torch import Tensor

from workbench.errors import CapacityError


class LatentPages:
    """A pool of equal pages; sequences take pages as they grow and give them back."""

    def __init__(
        self, num_layers: int, row: int, *, num_pages: int, block_size: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.block_size = block_size
        self.arena = torch.zeros(num_pages, num_layers, block_size, row, dtype=dtype)
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages that no sequence has."""
        return len(self._free)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arena, as allocated."""
        return self.arena.untyped_storage().nbytes()

    @property
    def bytes_per_token(self) -> float:
        """Bytes of all layers that one token takes."""
        return self.num_bytes / (self.arena.shape[0] * self.block_size)

    def take(self, count: int) -> list[int]:
        """Pages for a sequence; CapacityError changes nothing."""
        if count > len(self._free):
            raise CapacityError(
                f"{count} pages of latents are needed and {len(self._free)} are free: end a "
                "sequence, or make a larger pool"
            )
        return [self._free.pop() for _ in range(count)]

    def give(self, pages: list[int]) -> None:
        """Pages that a sequence has no more use for."""
        self._free += reversed(pages)


class LatentSequence:
    """The latents of one sequence: its table and its length."""

    def __init__(self, pages: LatentPages) -> None:
        self._pages = pages
        self.table: list[int] = []
        self.num_tokens = 0

    def extend(self, count: int) -> None:
        """Make room for more tokens; CapacityError changes nothing."""
        size = self._pages.block_size
        self.table += self._pages.take(-(-(self.num_tokens + count) // size) - len(self.table))
        self.num_tokens += count

    def write(self, layer: int, start: int, rows: Tensor) -> None:
        """Rows [N, latent + rope] of one layer, from token `start` on."""
        at = torch.arange(start, start + len(rows))
        size = self._pages.block_size
        self._pages.arena[torch.tensor(self.table)[at // size], layer, at % size] = rows

    def read(self, layer: int) -> Tensor:
        """All rows of one layer, [tokens, latent + rope]."""
        return self._pages.arena[self.table, layer].flatten(0, 1)[: self.num_tokens]

    def free(self) -> None:
        """Give every page back; twice is harmless."""
        self._pages.give(self.table)
        self.table, self.num_tokens = [], 0
