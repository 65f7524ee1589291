"""Budgets of layers and heads add up to what the request has, and none goes below its floor."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cache.geometry import build_geometry
from workbench.cache.retention import StoredTokens
from workbench.config import RetentionSettings
from workbench.structural.retention.budgets import split_budget
from workbench.structural.retention.selection import slots_to_keep

LAYERS = st.integers(1, 7)
HEADS = st.integers(1, 4)


def budgets_of(split: str, num_layers: int, heads: int, budget: int, seed: int) -> np.ndarray:
    """[num_layers, heads] for requests of 200 tokens with random scores."""
    geometry = build_geometry("head", num_layers=num_layers, num_kv_heads=heads, head_dim=16)
    rng = np.random.default_rng(seed)
    views, scores = [], []
    for _ in geometry.groups:
        rate = rng.random(200) ** 4
        views.append(StoredTokens(np.arange(200), rate, rate, rate, 200, 4))
        scores.append(rate * rng.random())
    found = split_budget(geometry, views, scores, options(split, budget))
    return found.reshape(num_layers, heads)


def options(split: str, budget: int) -> RetentionSettings:
    return RetentionSettings(
        policy="h2o", budget_tokens=budget, sink_tokens=3, window_tokens=9, split=split
    )


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(num_layers=LAYERS, heads=HEADS, budget=st.integers(16, 90))
def test_pyramid_keeps_the_mean(num_layers: int, heads: int, budget: int) -> None:
    found = budgets_of("pyramid", num_layers, heads, budget, 0)
    assert found.sum() == num_layers * heads * budget
    assert (found >= 12).all(), "sinks and window"
    assert (np.diff(found[:, 0]) <= 1).all(), "more for the first layers, but for rounding"
    assert (found == found[:, :1]).all(), "heads of one layer are equal"


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(num_layers=LAYERS, heads=HEADS, budget=st.integers(16, 90), seed=st.integers(0, 50))
def test_ada_keeps_each_layers_sum_and_the_floor(
    num_layers: int, heads: int, budget: int, seed: int
) -> None:
    found = budgets_of("ada", num_layers, heads, budget, seed)
    assert (found.sum(1) == heads * budget).all()
    assert (found >= 12 + int(0.2 * (budget - 12))).all()
    both = budgets_of("ada+pyramid", num_layers, heads, budget, seed)
    pyramid = budgets_of("pyramid", num_layers, heads, budget, seed)
    assert (both.sum(1) == pyramid.sum(1)).all()


def test_a_head_that_is_read_more_gets_more() -> None:
    geometry = build_geometry("head", num_layers=1, num_kv_heads=2, head_dim=16)
    rates = [np.full(100, 0.1), np.full(100, 0.9)]
    views = [StoredTokens(np.arange(100), rate, rate, rate, 100, 4) for rate in rates]
    chosen = options("ada", 32)
    for floor, wanted in ((0.2, [12 + 4, 12 + 36]), (0.0, [12, 12 + 40]), (1.0, [32, 32])):
        found = split_budget(geometry, views, rates, replace(chosen, ada_floor=floor))
        assert found.tolist() == wanted


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(
    num_layers=st.integers(2, 30), count=st.integers(20, 400), budget=st.integers(16, 300),
    split=st.sampled_from(["pyramid", "ada+pyramid"]),
)  # fmt: skip
def test_a_prompt_longer_than_the_budget_keeps_the_mean(
    num_layers: int, count: int, budget: int, split: str
) -> None:
    """What is given to no layer beyond the prompt is given to the others (PyramidKV's own clip)."""
    geometry = build_geometry("head", num_layers=num_layers, num_kv_heads=2, head_dim=16)
    rng = np.random.default_rng(count)
    scores = [rng.random(count) for _ in geometry.groups]
    views = [StoredTokens(np.arange(count), score, score, score, count, 1) for score in scores]
    chosen = options(split, budget)
    found = split_budget(geometry, views, scores, chosen)
    left = [
        count if kept is None else len(kept)
        for kept in (
            slots_to_keep(view, score, chosen, int(share))
            for view, score, share in zip(views, scores, found, strict=True)
        )
    ]
    assert sum(left) == len(views) * min(count, budget)


def test_the_pyramid_of_a_short_prompt_is_the_references() -> None:
    """30 layers, 256 tokens, 80 of them sinks and window, a prompt of 300: clipped, not lost."""
    geometry = build_geometry("layer", num_layers=30, num_kv_heads=3, head_dim=64)
    chosen = RetentionSettings(
        policy="snapkv", budget_tokens=256, sink_tokens=16, window_tokens=64, split="pyramid"
    )
    rate = np.ones(300)
    views = [StoredTokens(np.arange(300), rate, rate, rate, 300, 16)] * 30
    found = split_budget(geometry, views, [rate] * 30, chosen)
    most, total = 300 - 80, 256 - 80  # min_num = 2 * total - max_num once max_num is clipped
    wanted = np.linspace(most, 2 * total - most, 30)
    assert np.abs(found - 80 - wanted).max() <= 1
    assert found.max() == 300 and found.mean() == 256


def test_a_budget_below_sinks_and_window_is_theirs() -> None:
    geometry = build_geometry("layer", num_layers=2, num_kv_heads=2, head_dim=16)
    wide = RetentionSettings(policy="h2o", budget_tokens=16, sink_tokens=12, window_tokens=20)
    rate = np.ones(60)
    views = [StoredTokens(np.arange(60), rate, rate, rate, 60, 4)] * 2
    assert split_budget(geometry, views, [rate] * 2, wide).tolist() == [32, 32]
