"""From scores to what goes: sinks and window are protected, the budget holds, pages are whole."""

import numpy as np

from workbench.cache.retention import StoredTokens
from workbench.config import RetentionSettings


def floor_tokens(settings: RetentionSettings) -> int:
    """Tokens that no budget goes below."""
    return settings.sink_tokens + settings.window_tokens


def protected(tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
    """bool [n]: sinks and the newest tokens."""
    newest = tokens.num_tokens - settings.window_tokens
    found: np.ndarray = (tokens.positions < settings.sink_tokens) | (tokens.positions >= newest)
    return found


def pages_to_drop(
    tokens: StoredTokens, scores: np.ndarray, settings: RetentionSettings, budget: int
) -> list[int]:
    """Full pages with the lowest mean score, so many that the budget holds.

    A page that holds a protected token stays.
    """
    size, count = tokens.block_size, len(tokens.positions)
    excess = -(-(count - max(budget, floor_tokens(settings))) // size)
    full = count // size
    if excess <= 0 or not full:
        return []
    by_page = scores[: full * size].reshape(full, size).mean(axis=1)
    safe = protected(tokens, settings)[: full * size].reshape(full, size).any(axis=1)
    candidates = np.flatnonzero(~safe)
    order = np.argsort(by_page[candidates], kind="stable")
    return sorted(int(page) for page in candidates[order[:excess]])


def slots_to_keep(
    tokens: StoredTokens, scores: np.ndarray, settings: RetentionSettings, budget: int
) -> np.ndarray | None:
    """Slots that stay, int [k] ascending, or None while leaving the rest would free no page."""
    size, count = tokens.block_size, len(tokens.positions)
    safe = protected(tokens, settings)
    room = max(0, max(budget, floor_tokens(settings)) - int(safe.sum()))
    candidates = np.flatnonzero(~safe)
    num_kept = int(safe.sum()) + min(room, len(candidates))
    if -(-num_kept // size) >= -(-count // size):
        return None
    order = np.argsort(-scores[candidates], kind="stable")
    kept: np.ndarray = np.sort(np.concatenate([np.flatnonzero(safe), candidates[order[:room]]]))
    return kept
