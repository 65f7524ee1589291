"""Faults of eviction and retrieval in other projects (numbers of the structural reference)."""

import numpy as np
import pytest
import torch

from tests.engine.harness import build, model, spec, tokens
from workbench.config import RetentionSettings
from workbench.engine.builtin import builtin_registry
from workbench.engine.engine import Engine
from workbench.settings.retention import GQA_REDUCTIONS, RETENTION_POLICIES

POLICIES = ["snapkv", "expected-attention"]  # every policy: tests/structural/test_retention.py
OBSERVING = ["h2o", "expected-attention"]


def kept(policy: str, **more: object) -> dict[str, object]:
    return {"retention.policy": policy, "retention.budget_tokens": 16,
            "retention.sink_tokens": 4, "retention.window_tokens": 8,
            "cache.prefix_caching": False} | more  # fmt: skip


@pytest.mark.parametrize("policy", OBSERVING)
@pytest.mark.parametrize("reduce", GQA_REDUCTIONS)
def test_07_pages_hold_kv_heads_whatever_query_heads_say(policy: str, reduce: str) -> None:
    """SnapKV #29, H2O #32: one kept set for each KV head, bytes of KV heads alone."""
    engine = build(kept(policy, **{"cache.grouping": "head", "retention.level": "token",
                                   "retention.gqa_reduce": reduce}))  # fmt: skip
    request_id = engine.add_request(spec(tokens(30), 4))
    for _ in range(3):
        engine.step()
    arch, stack = model().arch, engine.stack
    assert len(stack.specs.full) == arch.num_layers * arch.num_kv_heads
    blocks = stack.manager.requests[request_id]
    assert (blocks.stored_len <= 16 + 4).all()
    held = int(stack.pool.ref_cnt.sum()) * stack.specs.full[0].page_bytes
    assert held == int(blocks.num_pages.sum()) * 4 * arch.head_dim * 4 * 2


@pytest.mark.parametrize("policy", POLICIES)
def test_08_a_chunk_is_attended_before_anything_of_it_goes(policy: str) -> None:
    """VeloxQuant #370: the logits of the step that evicts are those of the full cache."""
    logits: list[torch.Tensor] = []
    once = kept(policy, **{"retention.when": "prefill"})
    for number, changes in enumerate((once, {"cache.prefix_caching": False}), 1):
        engine = build(changes | {"scheduling.chunk_tokens": 64, "scheduling.token_budget": 64})
        engine.add_request(spec(tokens(40), 2))
        run = engine.stack.runner.run

        def ran(*args: object, run: object = run, **more: object) -> object:
            result = run(*args, **more)  # type: ignore[operator]
            logits.append(result[0].clone())
            return result

        engine.stack.runner.run = ran
        while len(logits) < number:
            engine.step()
            if logits and logits[-1].shape[0] == 0:
                logits.pop()
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
def test_08_the_budget_holds_after_every_chunk_and_sinks_are_the_texts(policy: str) -> None:
    """VeloxQuant #84, #91: sinks are first tokens of the text, not of a chunk.

    What judges by the end of the prompt keeps all of it until then.
    """
    waits = builtin_registry().create("retention", policy).tail_queries(RetentionSettings()) > 0
    engine = build(kept(policy, **{"scheduling.chunk_tokens": 8}))
    request_id = engine.add_request(spec(tokens(50), 2))
    while engine.requests and engine.requests[request_id].num_computed_tokens < 50:
        engine.step()
        blocks = engine.stack.manager.requests.get(request_id)
        if blocks is None:
            break
        positions, computed = blocks.positions(0), engine.requests[request_id].num_computed_tokens
        if waits and computed < 50:
            assert positions.tolist() == list(range(computed))
            continue
        assert len(positions) <= 16 + 3
        assert set(range(min(4, len(positions)))) <= set(positions.tolist())
    engine.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_16_a_prompt_shorter_than_the_window_loses_nothing(policy: str) -> None:
    """kvpress #134: half of what a window does not cover must not be dropped."""
    least = 68 if policy == "snapkv" else 16  # it refuses what is below sinks and window
    engine = build(
        kept(policy, **{"retention.window_tokens": 64, "retention.budget_tokens": least})
    )
    request_id = engine.add_request(spec(tokens(40), 4))
    for _ in range(4):
        engine.step()
    blocks = engine.stack.manager.requests[request_id]
    count = engine.requests[request_id].num_computed_tokens
    assert blocks.positions(0).tolist() == list(range(count))
    engine.close()


@pytest.mark.parametrize("policy", RETENTION_POLICIES)
def test_a_hit_leaves_what_a_policy_must_have_observed(policy: str) -> None:
    """Decision 13: nothing is judged by attention, keys or queries that nobody saw."""
    made = builtin_registry().create("retention", policy)
    engine = build({"retention.policy": policy, "retention.budget_tokens": 200,
                    "retention.window_tokens": 8})  # fmt: skip
    _finish(engine, tokens(100))
    again = engine.add_request(spec(tokens(100), 2))
    engine.step()
    hit = engine.requests[again].num_cached_tokens
    least = max(made.min_observed_tokens, made.tail_queries(RetentionSettings(window_tokens=8)))
    assert hit <= 100 - max(1, least)
    assert hit == 0 if made.needs_keys else hit == (100 - max(1, least)) // 4 * 4
    engine.close()


def test_11_unwritten_slots_move_no_bound() -> None:
    """Quest's evaluation pads with the least float: only full pages have bounds here."""
    engine = build({"retention.sparse": "quest", "retention.sparse_pages": 3,
                    "retention.sparse_share": 0.0, "cache.hbm_budget_mib": 1.0,
                    "retention.sparse_dense_layers": 0})  # fmt: skip
    engine.stack.store.arena.fill_(0x7F)  # what is not written is huge
    request_id = engine.add_request(spec(tokens(41), 6))
    while engine.requests[request_id].num_output_tokens < 3:
        engine.step()
    bounds = engine.stack.runner.bounds
    assert bounds is not None
    blocks = engine.stack.manager.requests[request_id].blocks(0)
    full = blocks[: 43 // 4]
    assert not bounds.stale(full[:10]).any() and bounds.stale(blocks[-1:]).all()
    rows = torch.from_numpy(bounds.rows(full[:10].astype(np.int64)))
    assert bounds.tensor[rows].abs().max() < 1e3
    engine.close()


def test_every_policy_says_what_it_must_have_observed() -> None:
    registry = builtin_registry()
    for name in registry.names("retention"):
        made = registry.create("retention", name)
        least = made.needs_mass or made.needs_queries
        assert isinstance(made.min_observed_tokens, int) and made.min_observed_tokens >= least


def _finish(engine: Engine, prompt: list[int]) -> None:
    engine.add_request(spec(prompt, 1))
    while engine.has_work():
        engine.step()
