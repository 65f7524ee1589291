"""CaM: an evicted value goes in equal parts to the next kept tokens, by a chance that repeats."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, tokens
from workbench.structural.retention.merging import (
    MERGE_BUDGET,
    keyed_draws,
    spread_into_following,
)

CAM = {
    "cache.grouping": "head", "retention.level": "token", "retention.merge": "cam",
    "retention.policy": "h2o", "retention.budget_tokens": 24, "retention.sink_tokens": 4,
    "retention.window_tokens": 8,
}  # fmt: skip


def by_loop(values: np.ndarray, mass: np.ndarray, kept: list[int], gone: list[int],
            draws: np.ndarray) -> np.ndarray:  # fmt: skip
    """The article's rule, token by token, in float64."""
    merged = {token: values[token].copy() for token in kept}
    for token, draw in zip(gone, draws, strict=True):
        heirs = [other for other in kept if other > token][:MERGE_BUDGET]
        if not heirs:
            continue
        mean = mass[heirs].mean()
        chance = (1.0 if mass[token] > 0 else 0.0) if mean == 0 else min(1, mass[token] / mean)
        if draw < chance:
            for heir in heirs:
                merged[heir] += values[token] / len(heirs)
    return np.array([merged[token] for token in kept])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(2, 90), st.floats(0, 1), st.booleans())
def test_what_is_left_is_the_articles(seed: int, count: int, share: float, idle: bool) -> None:
    rng = np.random.default_rng(seed)
    stays = rng.random(count) < share
    kept, gone = np.flatnonzero(stays), np.flatnonzero(~stays)
    values, mass = rng.normal(size=(count, 4)), rng.random(count) ** 3
    if idle:
        mass[rng.random(count) < 0.5] = 0
    draws = rng.random(len(gone))
    arrays = (torch.from_numpy(x) for x in (values, mass, kept, gone, draws))
    found = spread_into_following(*arrays)
    if len(kept):
        expected = by_loop(values, mass, kept.tolist(), gone.tolist(), draws)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_draws_repeat_and_are_spread_evenly() -> None:
    positions = np.arange(20000)
    draws = keyed_draws(7, 123, 2, positions)
    assert np.array_equal(draws[5000:], keyed_draws(7, 123, 2, positions[5000:]))
    assert draws.min() >= 0 and draws.max() < 1 and abs(draws.mean() - 0.5) < 0.01
    assert np.histogram(draws, 10, (0, 1))[0].min() > 1800
    for other in ((8, 123, 2), (7, 124, 2), (7, 123, 3)):
        assert abs(np.corrcoef(draws, keyed_draws(*other, positions))[0, 1]) < 0.03


def test_a_run_repeats_and_merging_changes_it() -> None:
    changes = CAM | {"cache.prefix_caching": False}
    first, second, plain = (
        Runner(build(changes | more)).one(tokens(40), 16, seed=3)
        for more in ({}, {}, {"retention.merge": "off"})
    )
    assert first == second != plain


@pytest.mark.parametrize("formats", ["bf16", "int8", "turbo4"])
def test_keys_and_counts_stay(formats: str) -> None:
    runner = Runner(build(CAM | {"cache.k_format": formats, "cache.v_format": formats}))
    request_id = runner.add(tokens(40), 30)
    runner.step(20)
    blocks = runner.engine.stack.manager.requests[request_id]
    assert blocks.log_count is None
    assert runner.engine.retainer.observers[request_id].num_evicted > 0
    runner.drain()


def test_mass_is_observed_for_a_policy_that_needs_none() -> None:
    runner = Runner(build(CAM | {"retention.policy": "key-norm"}))
    runner.engine.retainer.for_display = False
    request_id = runner.add(tokens(40), 30)
    runner.step(6)
    assert runner.engine.retainer.observers[request_id].mass.any()
    runner.drain()
