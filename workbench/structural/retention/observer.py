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
        self._kept = 1.0

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
        tokens = (first_tokens[:, None] + np.arange(block_size)).ravel()
        gone = tokens[~self.evicted[tokens]]
        rates = np.where(self.evicted, 0.0, self.mass / np.maximum(self.seen, 1))
        total = float(rates.sum())
        if total > 0:
            self._kept *= 1.0 - float(rates[gone].sum()) / total
        self.evicted[gone] = True

    def forget_evictions(self) -> None:
        """Everything is stored again (recomputation after a preemption)."""
        self.evicted[:] = False
        self._kept = 1.0

    def kept_share(self) -> float | None:
        """Share of the attention mass that evictions left; None before anything was observed.

        Each eviction is weighed at its moment, among what was stored then: later rates of an
        evicted token are unknown, and its early ones are too high (few tokens shared the mass).
        """
        return self._kept if self.num_observed else None

    @property
    def num_evicted(self) -> int:
        """Tokens evicted so far."""
        return int(self.evicted.sum())
