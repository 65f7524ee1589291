"""SnapKV and TOVA choose by the end of the prompt: once it is read, however it was read."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import avg_pool1d

from tests.engine.harness import Runner, build, model, pages, tokens
from workbench.errors import RequestError, SettingError
from workbench.settings.cache import GROUPINGS
from workbench.structural.retention.policies import pooled

PROMPT, WINDOW, SINKS = 61, 12, 3
KEPT: dict[str, Any] = {
    "retention.policy": "snapkv", "retention.level": "token", "retention.budget_tokens": 24,
    "retention.sink_tokens": SINKS, "retention.window_tokens": WINDOW, "cache.grouping": "head",
    "scheduling.chunk_tokens": 64, "scheduling.token_budget": 64,
}  # fmt: skip


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(0, 1, width=32), max_size=12))
def test_the_pool_is_torchs_for_any_length(scores: list[float]) -> None:
    found = pooled(np.array(scores, np.float64), np.arange(len(scores)))
    assert found.shape == (len(scores),)
    if scores:
        wanted = avg_pool1d(torch.tensor([scores], dtype=torch.float64), 5, 1, 2)[0]
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-12)


def attention(text: list[int]) -> torch.Tensor:
    """[L, Hkv, G, T, T] of the plain model, float64."""
    decoder, arch, count = model().decoder, model().arch, len(text)
    found = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        queries = q.double().unflatten(1, (arch.num_kv_heads, -1))
        scores = torch.einsum("thgd,shd->hgts", queries, k.double()) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        found.append(scores.softmax(-1))
        out = torch.einsum("hgts,shd->thgd", found[-1], v.double())
        return out.flatten(1).to(q.dtype)

    with torch.inference_mode():
        decoder.forward(torch.tensor(text), torch.arange(count), attend, torch.tensor([count - 1]))
    return torch.stack(found)


def wanted_scores(prompt: list[int], window: int) -> np.ndarray:
    """SnapKV's scores [groups, PROMPT - window] of every layer and KV head."""
    seen = attention(prompt)[..., -window:, :-window].mean(-2).mean(2)
    return avg_pool1d(seen.flatten(0, 1), 5, stride=1, padding=2).numpy()


def read(runner: Runner, prompt: list[int], max_tokens: int = 30) -> str:
    """A request whose prompt was just read; nothing goes before that."""
    request_id = runner.add(prompt, max_tokens)
    request = runner.engine.requests[request_id]
    while request.num_computed_tokens < len(prompt):
        runner.step()
        blocks = runner.engine.stack.manager.requests[request_id]
        if request.num_computed_tokens < len(prompt):
            assert (blocks.stored_len == request.num_computed_tokens).all()
    return request_id


def kept_sets(runner: Runner, request_id: str) -> list[list[int]]:
    blocks = runner.engine.stack.manager.requests[request_id]
    return [blocks.positions(group).tolist() for group in range(len(blocks.table))]


@pytest.mark.parametrize("when", ["both", "prefill"])
@pytest.mark.parametrize("chunk", [5, 16, 64])
def test_the_window_judges_once_however_the_prompt_is_read(chunk: int, when: str) -> None:
    runner = Runner(build(KEPT | {"scheduling.chunk_tokens": chunk, "retention.when": when}))
    prompt = tokens(PROMPT)
    runner.add(tokens(9, 4), 40)  # shares the steps' tokens with it
    found = kept_sets(runner, read(runner, prompt))
    for positions, scores in zip(found, wanted_scores(prompt, WINDOW), strict=True):
        order = SINKS + np.argsort(-scores[SINKS:], kind="stable")
        best = sorted(order[: 24 - SINKS - WINDOW].tolist())
        assert positions == [*range(SINKS), *best, *range(PROMPT - WINDOW, PROMPT)]
    runner.drain()


def test_what_the_window_said_decides_while_the_answer_is_written() -> None:
    """No query of the answer ranks the prompt anew; what was generated goes first."""
    runner = Runner(build(KEPT | {"cache.block_size": 4}))
    prompt = tokens(PROMPT)
    request_id = read(runner, prompt)
    before = kept_sets(runner, request_id)
    runner.step(20)
    now = runner.engine.requests[request_id].num_computed_tokens
    open_prompt = set(range(SINKS, PROMPT - WINDOW))
    for old, new in zip(before, kept_sets(runner, request_id), strict=True):
        assert len(new) == 24
        assert set(new) & open_prompt <= set(old), "chosen once"
        assert set(new) >= set(range(now - WINDOW, now)), "the newest are protected"
    runner.engine.apply({"retention.budget_tokens": 20})
    runner.step()
    now += 1
    for scores, new in zip(
        wanted_scores(prompt, WINDOW), kept_sets(runner, request_id), strict=True
    ):
        left = set(new) - set(range(SINKS)) - set(range(now - WINDOW, now))
        assert len(new) == 20 and len(left) == 5
        best = SINKS + np.argsort(-scores[SINKS:], kind="stable")[:5]
        assert left <= set(range(PROMPT - WINDOW, PROMPT)) | set(best.tolist())
    runner.drain()


@pytest.mark.parametrize("level", ["page", "token"])
@pytest.mark.parametrize("window", [1, 90, 160])
def test_a_live_window_meets_groups_that_store_less(level: str, window: int) -> None:
    """It was an error of every running request: a group stores no more than the new window."""
    runner = Runner(build(KEPT | {
        "cache.grouping": "layer", "retention.split": "pyramid", "retention.level": level,
        "retention.budget_tokens": 170, "retention.window_tokens": 6, "cache.block_size": 4,
        "cache.hbm_budget_mib": 4.0, "model.max_model_len": 512}))  # fmt: skip
    prompt = tokens(260)
    ids = [read(runner, prompt, 40), runner.add(tokens(9, 3), 40)]
    first, last = (len(positions) for positions in kept_sets(runner, ids[0]))
    assert first > 170 and last < 90
    runner.engine.apply({"retention.window_tokens": window})
    runner.step(5)
    runner.engine.apply({"retention.window_tokens": 2, "retention.budget_tokens": 16})
    runner.drain()
    assert not any(runner.errors.values()), runner.errors
    assert all(len(runner.outputs[request_id]) == 40 for request_id in ids)


@pytest.mark.parametrize("policy", ["snapkv", "tova"])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_a_hit_keeps_what_a_miss_keeps(policy: str, grouping: str) -> None:
    runner = Runner(build(KEPT | {"retention.policy": policy, "cache.grouping": grouping,
                                  "cache.block_size": 4}))  # fmt: skip
    prompt = tokens(PROMPT)
    found = []
    for _ in range(2):
        request_id = read(runner, prompt, 2)
        cached = runner.engine.requests[request_id].num_cached_tokens
        found.append(kept_sets(runner, request_id))
        runner.drain()
    assert cached == (PROMPT - (WINDOW if policy == "snapkv" else 1)) // 4 * 4
    assert found[0] == found[1]


def test_a_preempted_request_is_judged_by_the_same_window() -> None:
    runner = Runner(build(KEPT | {"scheduling.preemption": "recompute"}))
    prompt = tokens(PROMPT)
    request_id = read(runner, prompt)
    before = kept_sets(runner, request_id)
    runner.step(20)
    request = runner.engine.requests[request_id]
    runner.engine.scheduler.preempt(request, "test")
    runner.until(lambda: request.num_computed_tokens == PROMPT)
    assert kept_sets(runner, request_id) == before
    runner.drain()
    assert len(runner.outputs[request_id]) == 30


def test_a_request_that_was_read_before_is_judged_by_what_was_seen_since() -> None:
    runner = Runner(build(KEPT | {"retention.policy": "none"}))
    request_id = read(runner, tokens(PROMPT))
    runner.engine.apply({"retention.policy": "snapkv"})
    runner.step()
    view = runner.engine.retainer.observers[request_id].stored(0, np.arange(PROMPT), PROMPT, 4)
    assert view.window is None
    assert all(len(positions) == 24 for positions in kept_sets(runner, request_id))
    runner.drain()
    assert len(runner.outputs[request_id]) == 30


@pytest.mark.parametrize("policy", ["snapkv", "tova"])
def test_a_prompt_that_has_no_room_is_refused_and_one_that_has_ends(policy: str) -> None:
    """All of it is stored before anything may go, and the answer needs no more than the budget."""
    runner = Runner(build(KEPT | {
        "retention.policy": policy, "cache.grouping": "model", "scheduling.chunk_tokens": 8,
        "cache.block_size": 4, "cache.hbm_budget_mib": pages(32)}))  # fmt: skip
    request_id = runner.add(tokens(100), 120)
    runner.drain()
    assert len(runner.outputs[request_id]) == 120
    with pytest.raises(RequestError, match="needs .* blocks and the whole pool has 32"):
        runner.add(tokens(140, 1), 2)


def test_a_window_that_cannot_hold_is_refused_before_anything_changes() -> None:
    runner = Runner(build(KEPT | {"cache.hbm_budget_mib": 4.0}))
    request_id = read(runner, tokens(PROMPT))
    told = (
        "retention.window_tokens = 4096 and retention.sink_tokens = 3 always stay and are more "
        "than retention.budget_tokens = 24"
    )
    with pytest.raises(SettingError, match=told):
        runner.engine.apply({"retention.window_tokens": 4096})
    assert runner.engine.config.retention.window_tokens == WINDOW
    runner.engine.apply({"retention.window_tokens": 4096, "retention.budget_tokens": 4099})
    runner.drain()
    assert len(runner.outputs[request_id]) == 30
