"""How a request's budget is split among its groups: tokens for each, and the mean stays."""

import numpy as np

from workbench.cache.geometry import Geometry
from workbench.cache.retention import StoredTokens
from workbench.config import RetentionSettings
from workbench.structural.retention.selection import floor_tokens, protected

PYRAMID_BETA = 20
ADA_FLOOR = 0.2


def split_budget(
    geometry: Geometry,
    views: list[StoredTokens],
    scores: list[np.ndarray],
    settings: RetentionSettings,
) -> np.ndarray:
    """Budget of each group in tokens, int [num_groups]; sinks and window are part of it."""
    total = max(settings.budget_tokens, floor_tokens(settings))
    budgets = np.full(len(views), total)
    if settings.split in ("pyramid", "ada+pyramid"):
        layers = _pyramid(len(geometry.layer_sets), total, floor_tokens(settings))
        for layer_set in geometry.layer_sets:
            budgets[list(layer_set.groups)] = layers[layer_set.index]
    if settings.split in ("ada", "ada+pyramid"):
        for layer_set in geometry.layer_sets:
            groups = list(layer_set.groups)
            budgets[groups] = _adaptive(
                [views[group] for group in groups],
                [scores[group] for group in groups],
                settings,
                int(budgets[groups[0]]),
            )
    return budgets


def _pyramid(num_layers: int, total: int, floor: int) -> np.ndarray:
    """More for the first layers, less for the last, linear; the mean is `total`.

    Source: Cai et al., PyramidKV: the last layer gets 1 / beta of the mean beyond the window.
    """
    least = (total - floor) / PYRAMID_BETA
    most = 2 * (total - floor) - least
    if num_layers == 1:
        return np.array([total])
    return floor + _rounded(np.linspace(most, least, num_layers))


def _rounded(shares: np.ndarray) -> np.ndarray:
    """Whole numbers near the shares, whose sum is the nearest to theirs."""
    whole: np.ndarray = np.diff(np.rint(np.cumsum(shares)).astype(np.int64), prepend=0)
    return whole


def _adaptive(
    views: list[StoredTokens], scores: list[np.ndarray], settings: RetentionSettings, budget: int
) -> np.ndarray:
    """Heads of one layer compete for their layer's budget; each keeps a fifth of an equal share.

    Source: Feng et al., Ada-KV, with its floor of 0.2.
    """
    open_scores = [
        score[~protected(view, settings)] for view, score in zip(views, scores, strict=True)
    ]
    room = max(0, budget - floor_tokens(settings))
    owner = np.repeat(np.arange(len(views)), [len(part) for part in open_scores])
    best = np.argsort(-np.concatenate(open_scores), kind="stable")[: room * len(views)]
    won = np.bincount(owner[best], minlength=len(views))
    return floor_tokens(settings) + _rounded(won * (1 - ADA_FLOOR) + room * ADA_FLOOR)
