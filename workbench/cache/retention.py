"""What a retention policy sees of a request, and what it answers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workbench.config import RetentionSettings


@dataclass(frozen=True)
class StoredPages:
    """Full pages of one request in one group, in logical order.

    `first_token`: int [n] position of each page's first token. `mass_rate`: float [n] attention
    mass a token of the page received per query that could see it (0 where nothing was observed).
    `num_stored`: slots stored, the partial last page included. `num_tokens`: logical length.
    """

    first_token: np.ndarray
    mass_rate: np.ndarray
    num_stored: int
    num_tokens: int
    block_size: int


class RetentionPolicy(Protocol):
    """Chooses full pages to evict from a running request after each step.

    `needs_mass`: attention mass has to be observed at every step. `min_observed_tokens`: queries
    that must have been observed before it decides; a prefix hit is cut to leave that many.
    """

    needs_mass: bool
    min_observed_tokens: int

    def choose(self, pages: StoredPages, settings: RetentionSettings) -> list[int]:
        """Indices of pages to evict now."""
