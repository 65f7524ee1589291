"""Page-level retention: pages are really freed, the positions of what stays are kept."""

import numpy as np

from workbench.cache.retention import StoredPages
from workbench.config import RetentionSettings


class KeepAll:
    """Evicts nothing."""

    needs_mass = False
    min_observed_tokens = 0

    def choose(self, pages: StoredPages, settings: RetentionSettings) -> list[int]:
        """Nothing to evict."""
        return []


class SinkWindow:
    """Keeps the first tokens and the last ones (StreamingLLM, with original positions).

    Pages that hold a sink token stay; then the oldest pages go until the budget holds.
    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks.
    """

    needs_mass = False
    min_observed_tokens = 0

    def choose(self, pages: StoredPages, settings: RetentionSettings) -> list[int]:
        """The oldest pages that hold no sink."""
        excess = num_excess_pages(pages, settings)
        candidates = np.flatnonzero(pages.first_token >= settings.sink_tokens)
        return [int(page) for page in candidates[:excess]]


class AttentionMass:
    """Keeps the heavy hitters by page: sinks, recent tokens, and the pages read most.

    The score is the attention mass per token and per query that could see it, so that old tokens
    have no advantage by age. Source: Zhang et al., H2O, with kvpress's age normalisation.
    """

    needs_mass = True
    min_observed_tokens = 1

    def choose(self, pages: StoredPages, settings: RetentionSettings) -> list[int]:
        """Pages outside sinks and window with the smallest mass."""
        excess = num_excess_pages(pages, settings)
        newest = pages.num_tokens - settings.window_tokens
        movable = (pages.first_token >= settings.sink_tokens) & (
            pages.first_token + pages.block_size <= newest
        )
        candidates = np.flatnonzero(movable)
        order = np.argsort(pages.mass_rate[candidates], kind="stable")
        return [int(page) for page in candidates[order[:excess]]]


def num_excess_pages(pages: StoredPages, settings: RetentionSettings) -> int:
    """Full pages beyond the budget; never below sinks and window."""
    floor = settings.sink_tokens + settings.window_tokens
    budget = max(settings.budget_tokens, floor)
    return max(0, -(-(pages.num_stored - budget) // pages.block_size))
