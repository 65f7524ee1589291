"""Attention mass each token received, and which tokens are gone, for one request."""

import numpy as np

from workbench.cache.retention import PromptWindow, StoredTokens


class MassObserver:
    """Sums by group and original token position, so that eviction moves nothing.

    `mass` float [num_groups, tokens]: attention a token received, averaged over a group's layers
    and query heads. `seen`: queries that could see it while mass was observed. `recent`: mass per
    query of the newest observed step. `key_norm`: length of the token's key (where it is observed).
    """

    def __init__(self, num_groups: int, max_tokens: int) -> None:
        self.mass = np.zeros((num_groups, max_tokens), np.float32)
        self.seen = np.zeros((num_groups, max_tokens), np.int32)
        self.recent = np.zeros((num_groups, max_tokens), np.float32)
        self.key_norm = np.zeros((num_groups, max_tokens), np.float32)
        self.evicted = np.zeros((num_groups, max_tokens), bool)
        self.num_observed = 0
        self._window: np.ndarray | None = None  # mass by the end of the prompt alone
        self._window_queries = range(0)
        self._window_rates: np.ndarray | None = None  # [num_groups, prompt], once they are asked
        self._kept = np.ones(num_groups)

    def observe(
        self, positions: np.ndarray, stored: np.ndarray, mass: np.ndarray, num_queries: int
    ) -> None:
        """Add one step of `num_queries` query rows.

        positions: int [num_groups, T] of the stored slots; stored: int [num_groups] how many are
        real, the last of them those queries' own tokens; mass: float [num_groups, T] summed over
        the queries.
        """
        slot = np.arange(positions.shape[1])
        group, at = np.nonzero(slot < stored[:, None])
        where = group, positions[group, at]
        self.mass[where] += mass[group, at]
        self.recent[where] = mass[group, at] / num_queries
        self.seen[where] += np.minimum(num_queries, stored[group] - at).astype(np.int32)
        self.num_observed += num_queries

    def observe_window(
        self, positions: np.ndarray, stored: np.ndarray, mass: np.ndarray, queries: range
    ) -> None:
        """Add a step to what the end of the prompt read; `queries`: its positions, see `observe`.

        A step that does not go on where the one before ended begins anew: the prompt is computed
        again.
        """
        if self._window is None or queries.start != self._window_queries.stop:
            self._window = np.zeros(self.mass.shape, np.float32)
            self._window_queries = range(queries.start, queries.start)
        slot = np.arange(positions.shape[1])
        group, at = np.nonzero(slot < stored[:, None])
        self._window[group, positions[group, at]] += mass[group, at]
        self._window_queries = range(self._window_queries.start, queries.stop)
        self._window_rates = None

    def _prompt_window(self, group: int) -> PromptWindow | None:
        if self._window is None:
            return None
        first, stop = self._window_queries.start, self._window_queries.stop
        if self._window_rates is None:
            seen = stop - np.maximum(np.arange(stop), first)  # queries that could see the token
            self._window_rates = self._window[:, :stop] / seen.astype(np.float32)
        return PromptWindow(first, self._window_rates[group])

    def rate(self, start: int, stop: int) -> np.ndarray:
        """Mass per query that could see the token, mean over the groups, float [stop - start]."""
        seen = np.maximum(self.seen[:, start:stop], 1)
        rates: np.ndarray = (self.mass[:, start:stop] / seen).mean(axis=0)
        return rates

    def stored(
        self, group: int, positions: np.ndarray, num_tokens: int, block_size: int
    ) -> StoredTokens:
        """What a policy sees of a group's stored tokens."""
        mass = self.mass[group, positions]
        rate = mass / np.maximum(self.seen[group, positions], 1)
        return StoredTokens(
            positions,
            mass,
            rate,
            self.recent[group, positions],
            num_tokens,
            block_size,
            self.key_norm[group, positions],
            window=self._prompt_window(group),
        )

    def page_rates(self, positions: np.ndarray, stored: np.ndarray, block_size: int) -> np.ndarray:
        """Mean rate over each page's tokens, float [num_groups, pages].

        positions: int [num_groups, pages * block_size]; stored: int [num_groups] slots in use.
        """
        group = np.arange(len(positions))[:, None]
        rates = self.mass[group, positions] / np.maximum(self.seen[group, positions], 1)
        rates *= np.arange(positions.shape[1]) < stored[:, None]
        mean: np.ndarray = rates.reshape(len(positions), -1, block_size).mean(axis=-1)
        return mean

    def mark_evicted(self, group: int, tokens: np.ndarray) -> None:
        """These tokens, int positions, are no longer stored in a group."""
        evicted = self.evicted[group]
        gone = tokens[~evicted[tokens]]
        seen = np.maximum(self.seen[group], 1)
        rates = np.where(evicted, 0.0, self.mass[group] / seen)
        total = float(rates.sum())
        if total > 0:
            self._kept[group] *= 1.0 - float(rates[gone].sum()) / total
        evicted[gone] = True

    def restore(self, stored: np.ndarray) -> None:
        """Only the tokens `stored` bool [num_groups, n] of the first n are in the cache again."""
        self.evicted[:] = False
        self.evicted[:, : stored.shape[1]] = ~stored

    def forget_evictions(self) -> None:
        """Everything is stored again (recomputation after a preemption)."""
        self.evicted[:] = False
        self._kept[:] = 1.0

    def kept_share(self) -> float | None:
        """Share of the attention mass that evictions left; None before anything was observed.

        Each eviction is weighed at its moment, among what was stored then: later rates of an
        evicted token are unknown, and its early ones are too high (few tokens shared the mass).
        """
        return float(self._kept.mean()) if self.num_observed else None

    def evicted_share(self, start: int, stop: int) -> np.ndarray:
        """Share of the groups that no longer store each token, float [stop - start]."""
        share: np.ndarray = self.evicted[:, start:stop].mean(axis=0)
        return share

    @property
    def num_evicted(self) -> int:
        """Tokens that no group stores any more."""
        return int(self.evicted.all(axis=0).sum())
