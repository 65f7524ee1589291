"""Every policy scores, splits and drops at any size: nothing, one token, less than a window."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cache.geometry import build_geometry
from workbench.cache.retention import PromptWindow, StoredTokens
from workbench.config import RetentionSettings
from workbench.engine.builtin import builtin_registry
from workbench.settings.retention import BUDGET_SPLITS, RETENTION_POLICIES
from workbench.structural.retention.budgets import split_budget
from workbench.structural.retention.observer import MassObserver
from workbench.structural.retention.selection import (
    floor_tokens,
    pages_to_drop,
    protected,
    slots_to_keep,
)

LAYERS, HEADS, MOST = 3, 2, 40
GEOMETRY = build_geometry("head", num_layers=LAYERS, num_kv_heads=HEADS, head_dim=16)
GROUPS = LAYERS * HEADS
FEW = st.sampled_from([0, 1, 2, 3, 4, 5]) | st.integers(0, MOST)


@st.composite
def requests(draw: st.DrawFn) -> list[StoredTokens]:
    """What each group of a request stores: any of its tokens, the prompt observed or not."""
    num_tokens = draw(st.integers(1, MOST))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    observer = MassObserver(GROUPS, MOST)
    prompt = draw(st.integers(0, num_tokens))
    first = draw(st.integers(0, prompt))
    every = np.tile(np.arange(num_tokens), (GROUPS, 1))
    mass = rng.random((GROUPS, num_tokens)).astype(np.float32)
    observer.observe(every, np.full(GROUPS, num_tokens), mass, num_tokens)
    if first < prompt:  # in one step or two
        middle = draw(st.integers(first + 1, prompt))
        for part in (range(first, middle), range(middle, prompt)):
            if part:
                seen = np.full(GROUPS, part.stop)
                observer.observe_window(every[:, : part.stop], seen, mass[:, : part.stop], part)
    found = []
    for group in range(GROUPS):
        held = np.sort(rng.permutation(num_tokens)[: draw(FEW)])
        view = observer.stored(group, held, num_tokens, draw(st.sampled_from([1, 4])))
        found.append(StoredTokens(**(vars(view) | {"expected": rng.random(len(held))})))
    return found


def kept_settings(policy: str, split: str, budget: int, sinks: int, window: int):
    return RetentionSettings(
        policy=policy, split=split, budget_tokens=budget, sink_tokens=sinks, window_tokens=window
    )


@pytest.mark.parametrize("policy", RETENTION_POLICIES)
@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(
    views=requests(), split=st.sampled_from(BUDGET_SPLITS), budget=st.integers(16, 50),
    sinks=st.integers(0, 20), window=st.sampled_from([1, 4, 16, 160]) | st.integers(1, 50),
)  # fmt: skip
def test_any_size(policy, views, split, budget, sinks, window) -> None:
    chosen = kept_settings(policy, split, budget, sinks, window)
    made = builtin_registry().create("retention", policy)
    scores = [made.score(view, chosen) for view in views]
    for view, score in zip(views, scores, strict=True):
        assert score.shape == view.positions.shape and np.isfinite(score).all()
    budgets = split_budget(GEOMETRY, views, scores, chosen)
    floor = floor_tokens(chosen)
    assert (budgets >= floor).all()
    assert budgets.sum() <= GROUPS * max(budget, floor)
    for view, score, share in zip(views, scores, budgets, strict=True):
        count, safe = len(view.positions), protected(view, chosen)
        kept = slots_to_keep(view, score, chosen, int(share))
        if kept is not None:
            assert len(kept) == min(count, max(int(share), int(safe.sum())))
            assert set(np.flatnonzero(safe)) <= set(kept) and (np.diff(kept) > 0).all()
        for page in pages_to_drop(view, score, chosen, int(share)):
            assert not safe[page * view.block_size : (page + 1) * view.block_size].any()


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(held=st.lists(FEW, min_size=GROUPS, max_size=GROUPS), budget=st.integers(16, 50),
       split=st.sampled_from(BUDGET_SPLITS[1:]))  # fmt: skip
def test_what_is_stored_is_used_up_to_the_budget(held: list[int], budget: int, split: str) -> None:
    """No group is given what it has not while others would have to drop for it."""
    chosen = kept_settings("h2o", split, budget, 3, 9)
    floor = floor_tokens(chosen)
    rng = np.random.default_rng(sum(held))
    scores = [rng.random(count) for count in held]
    views = [
        StoredTokens(np.arange(count), score, score, score, MOST, 1)
        for count, score in zip(held, scores, strict=True)
    ]
    budgets = split_budget(GEOMETRY, views, scores, chosen).reshape(LAYERS, HEADS)
    beyond = np.maximum(np.array(held).reshape(LAYERS, HEADS) - floor, 0)
    room = HEADS * (max(budget, floor) - floor)
    if split == "ada":
        wanted = np.minimum(beyond.sum(1), room)
        assert ((budgets - floor).sum(1) == wanted).all()
        assert (budgets - floor <= beyond).all()
    elif split == "pyramid":
        given = (budgets - floor)[:, 0]
        assert abs(given.sum() - min(beyond.mean(1).sum(), LAYERS * room / HEADS)) <= 1
        assert (given <= np.ceil(beyond.mean(1))).all()
    else:
        assert (budgets - floor <= beyond).all()


def test_a_window_that_was_the_whole_prompt_pools_nothing() -> None:
    whole = PromptWindow(0, np.array([0.5, 0.25, 0.125]))
    rate = np.zeros(4)
    view = StoredTokens(np.arange(4), rate, rate, rate, 4, 4, window=whole)
    made = builtin_registry().create("retention", "snapkv")
    scores = made.score(view, kept_settings("snapkv", "uniform", 16, 0, 3))
    assert scores[:3].tolist() == [0.5, 0.25, 0.125] and scores[3] < 0
