"""How a request's budget is split among its groups: tokens for each, and the mean stays."""

import numpy as np

from workbench.cache.geometry import Geometry
from workbench.cache.retention import StoredTokens
from workbench.config import RetentionSettings
from workbench.structural.retention.selection import floor_tokens, protected

PYRAMID_BETA = 20


def split_budget(
    geometry: Geometry,
    views: list[StoredTokens],
    scores: list[np.ndarray],
    settings: RetentionSettings,
) -> np.ndarray:
    """Budget of each group in tokens, int [num_groups]; sinks and window are part of it.

    Where budgets differ, what a group does not store goes to the others that share with it.
    """
    floor = floor_tokens(settings)
    total = max(settings.budget_tokens, floor)
    budgets = np.full(len(views), total)
    if settings.split in ("pyramid", "ada+pyramid"):
        held = np.maximum([len(view.positions) - floor for view in views], 0)
        layers = [held[list(layer_set.groups)].mean() for layer_set in geometry.layer_sets]
        shares = floor + _pyramid(np.array(layers), total - floor)
        for layer_set in geometry.layer_sets:
            budgets[list(layer_set.groups)] = shares[layer_set.index]
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


def _pyramid(held: np.ndarray, mean: int) -> np.ndarray:
    """More for the first layers, less for the last, linear; tokens beyond sinks and window.

    held: float [num_layers], such tokens that each layer stores. The mean is `mean`, or all of them
    where there are no more.
    Source: Cai et al., PyramidKV: the last layer gets 1 / beta of the mean, the first one at most
    what there is, and then the last one the more.
    """
    if len(held) == 1:
        return np.array([mean])
    most = min(mean * (2 - 1 / PYRAMID_BETA), max(mean, held.max()))
    return _rounded(_within(np.linspace(most, 2 * mean - most, len(held)), held))


def _within(shares: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Shares cut to what is held; what is cut off goes in equal parts to those that hold more."""
    cut = np.minimum(shares, held)
    left = min(shares.sum(), held.sum()) - cut.sum()
    while left > 1e-6:
        open_to = held - cut > 1e-9
        step = min(left / open_to.sum(), (held - cut)[open_to].min())
        cut[open_to] += step
        left -= step * open_to.sum()
    return cut


def _rounded(shares: np.ndarray) -> np.ndarray:
    """Whole numbers near the shares, whose sum is the nearest to theirs; whole shares stay."""
    sums = np.floor(np.cumsum(shares) + 0.5 + 1e-6).astype(np.int64)
    whole: np.ndarray = np.diff(sums, prepend=0)
    return whole


def _adaptive(
    views: list[StoredTokens], scores: list[np.ndarray], settings: RetentionSettings, budget: int
) -> np.ndarray:
    """Heads of one layer compete for their layer's budget; each is sure of a share of its own.

    Source: Feng et al., Ada-KV: what a head wins by its scores and an equal budget, mixed by
    `ada_floor` (0.2 in the article; 0 leaves the competition alone).
    """
    open_scores = [
        score[~protected(view, settings)] for view, score in zip(views, scores, strict=True)
    ]
    floor = floor_tokens(settings)
    room = max(0, budget - floor)
    owner = np.repeat(np.arange(len(views)), [len(part) for part in open_scores])
    best = np.argsort(-np.concatenate(open_scores), kind="stable")[: room * len(views)]
    won = np.bincount(owner[best], minlength=len(views))
    held = np.maximum([len(view.positions) - floor for view in views], 0)
    equal = settings.ada_floor
    return floor + _rounded(_within(won * (1 - equal) + room * equal, held))
