"""What a retention policy sees of a request, and what it answers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workbench.config import RetentionSettings


@dataclass(frozen=True)
class PromptWindow:
    """What the last queries of a request's prompt read, kept for as long as the request lives.

    `first`: position of the first of those queries. `attention`: float [p], what each of the
    prompt's p tokens got per query of the window that could see it.
    """

    first: int
    attention: np.ndarray


@dataclass(frozen=True)
class StoredTokens:
    """The tokens one group of a request stores, in logical order; n of them.

    positions: int [n]. Attention, averaged over the group's layers and query heads, float [n] each
    (0 where nothing was observed): `mass` summed over all queries so far, `rate` the same per query
    that could see the token, `recent` per query of the step just done.
    num_tokens: logical length of the request. `key_norm`: length of each key. `expected`: what
    queries to come are expected to give each token, times the length of its value. `window`: what
    the prompt's last queries read (see `tail_queries`); None if that was not observed.
    """

    positions: np.ndarray
    mass: np.ndarray
    rate: np.ndarray
    recent: np.ndarray
    num_tokens: int
    block_size: int
    key_norm: np.ndarray | None = None
    expected: np.ndarray | None = None
    window: PromptWindow | None = None


class RetentionPolicy(Protocol):
    """Says how much each stored token of a running request is worth keeping.

    Sinks, window, budget and level (token or page) are the engine's: a policy only gives scores.
    `needs_mass`: attention mass has to be observed at every step. `needs_keys`: so have the keys,
    and a prefix that others computed is no hit, because its keys were not seen. `needs_queries`:
    the queries have to be observed, and `expected` is computed.
    `min_observed_tokens`: queries that must have been observed before it decides; a prefix hit is
    cut to leave that many.
    """

    needs_mass: bool
    needs_keys: bool
    needs_queries: bool
    min_observed_tokens: int

    def tail_queries(self, settings: RetentionSettings) -> int:
        """How many last tokens of a prompt it judges by; 0: it does not care where a prompt ends.

        They are computed apart from the rest and observed as `window` (the newest step's of them as
        `recent`), and the request loses nothing before they are.
        """

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """float [n]: the smallest go first."""
