"""Attention mass each token received, and which tokens are gone, for one request."""

import numpy as np


class MassObserver:
    """Sums by original token position, so that eviction moves nothing.

    `mass`: attention a token received, averaged over layers and query heads. `seen`: queries that
    could see it while mass was observed.
    """

    def __init__(self, max_tokens: int) -> None:
        self.mass = np.zeros(max_tokens, np.float64)
        self.seen = np.zeros(max_tokens, np.int64)
        self.evicted = np.zeros(max_tokens, bool)
        self.num_observed = 0

    def observe(self, positions: np.ndarray, mass: np.ndarray, num_queries: int) -> None:
        """Add one step: `positions` int [T] of the stored slots, `mass` float [T] summed over
        `num_queries` query rows; the last slots are those queries' own tokens."""
        self.mass[positions] += mass
        could_see = np.full(len(positions), num_queries, np.int64)
        could_see[len(positions) - num_queries :] = np.arange(num_queries, 0, -1)
        self.seen[positions] += could_see
        self.num_observed += num_queries

    def rate(self, start: int, stop: int) -> np.ndarray:
        """Mass per query that could see the token, float [stop - start]."""
        seen = np.maximum(self.seen[start:stop], 1)
        rates: np.ndarray = self.mass[start:stop] / seen
        return rates

    def page_rates(self, first_token: np.ndarray, block_size: int) -> np.ndarray:
        """Mean rate over each page's tokens, float [n]."""
        tokens = first_token[:, None] + np.arange(block_size)
        seen = np.maximum(self.seen[tokens], 1)
        rates: np.ndarray = (self.mass[tokens] / seen).mean(axis=1)
        return rates

    def mark_evicted(self, first_tokens: np.ndarray, block_size: int) -> None:
        """The tokens of these pages are no longer stored."""
        self.evicted[(first_tokens[:, None] + np.arange(block_size)).ravel()] = True

    def forget_evictions(self) -> None:
        """Everything is stored again (recomputation after a preemption)."""
        self.evicted[:] = False

    def kept_share(self, num_tokens: int) -> float | None:
        """Share of the mass rate that lies on stored tokens; None before anything was observed."""
        rates = self.rate(0, num_tokens)
        total = float(rates.sum())
        if total <= 0:
            return None
        return float(rates[~self.evicted[:num_tokens]].sum()) / total

    @property
    def num_evicted(self) -> int:
        """Tokens evicted so far."""
        return int(self.evicted.sum())
