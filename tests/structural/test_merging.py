"""Merging: exact for equal keys, nothing is lost or counted twice, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, tokens
from workbench.config import EngineConfig, replace_settings
from workbench.errors import SettingError
from workbench.structural.retention.merging import merge_into_kept

MERGED = {
    "cache.grouping": "head", "retention.level": "token", "retention.merge": "nearest",
    "retention.merge_cosine": -1.0, "retention.policy": "attention-mass",
    "retention.budget_tokens": 24, "retention.sink_tokens": 4, "retention.window_tokens": 8,
}  # fmt: skip


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
              counts: torch.Tensor) -> torch.Tensor:  # fmt: skip
    return torch.softmax(keys @ query + counts.log(), 0) @ values


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4))
def test_equal_keys_merge_without_any_change(seed: int, num_kept: int, copies: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    distinct = torch.randn(num_kept, 8, generator=generator, dtype=torch.float64)
    keys = distinct.repeat(copies + 1, 1)
    values = torch.randn(len(keys), 8, generator=generator, dtype=torch.float64)
    counts = torch.randint(1, 4, (len(keys),), generator=generator).double()
    kept, gone = torch.arange(num_kept), torch.arange(num_kept, len(keys))
    merged, weight = merge_into_kept(keys, values, counts, kept, gone, 0.999)
    query = torch.randn(8, generator=generator, dtype=torch.float64)
    before = attention(query, keys, values, counts)
    after = attention(query, keys[kept], merged, weight)
    assert torch.allclose(before, after, atol=1e-12)
    assert weight.sum() == counts.sum()


def test_what_resembles_nothing_is_dropped() -> None:
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    values = torch.tensor([[1.0, 1.0], [9.0, 9.0]])
    ones = torch.ones(2)
    merged, weight = merge_into_kept(keys, values, ones, torch.tensor([0]), torch.tensor([1]), 0.5)
    assert merged.tolist() == [[1.0, 1.0]] and weight.tolist() == [1.0]


@pytest.mark.parametrize("positions", ["original", "compact"])
@pytest.mark.parametrize("formats", ["fp32", "bf16", "int8", "int4_rotated", "kvquant4", "lowrank"])
def test_every_token_is_counted_once(formats: str, positions: str) -> None:
    """With no bound on the cosine, the slots of each head stand for all tokens computed so far."""
    runner = Runner(build(MERGED | {"cache.k_format": formats, "cache.v_format": formats,
                                    "cache.sink_tokens": 0, "retention.positions": positions,
                                    "cache.prefix_caching": False}))  # fmt: skip
    request_id = runner.add(tokens(40), 30)
    for _ in range(20):
        runner.step()
        blocks = runner.engine.stack.manager.requests[request_id]
        request = runner.engine.requests[request_id]
        for group in range(len(blocks.table)):
            counts = blocks.counts(group)
            assert counts.sum() == pytest.approx(request.num_computed_tokens, rel=1e-4)
    assert blocks.log_count is not None and blocks.log_count.max() > 0
    runner.drain()


def test_without_a_heir_merging_is_plain_eviction() -> None:
    """A bound that nothing reaches: the same tokens as without merging."""
    plain = Runner(build(MERGED | {"retention.merge": "off"})).one(tokens(40), 20)
    strict = Runner(build(MERGED | {"retention.merge_cosine": 1.0})).one(tokens(40), 20)
    assert strict == plain


def test_another_requests_pages_are_not_merged_into() -> None:
    runner = Runner(build(MERGED | {"retention.when": "decode"}))
    prompt = tokens(40)
    other = runner.add(prompt, 2)
    runner.step(4)
    runner.drain()
    assert runner.status[other] == "finished_length"
    first = runner.add(prompt, 30)
    runner.step(20)
    index = runner.engine.stack.pool.index
    assert index.rows(), "the prompt's rows are still there"
    runner.engine.byte_guard.verify(runner.engine.stack)
    assert len(runner.outputs[first]) > 10
    runner.drain()


def test_counts_survive_a_swap() -> None:
    runner = Runner(
        build(
            MERGED
            | {"cache.hbm_budget_mib": 0.5, "tiers.dram_mib": 1.0, "scheduling.preemption": "swap"}
        )
    )
    request_id = runner.add(tokens(40), 60)
    runner.step(25)
    manager, request = runner.engine.stack.manager, runner.engine.requests[request_id]
    before = [manager.requests[request_id].counts(group).tolist() for group in range(4)]
    runner.engine.apply({"retention.policy": "none"})  # nothing more is merged
    runner.engine.scheduler.preempt(request, "test")
    runner.until(lambda: request_id in manager.requests)
    after = [manager.requests[request_id].counts(group) for group in range(4)]
    for old, new in zip(before, after, strict=True):
        assert np.allclose(old, new[: len(old)])
    runner.drain()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"retention.level": "page"}, "retention.level = page: choose token"),
        ({"cache.grouping": "layer"}, "cache.grouping = layer: choose head"),
    ],
)
def test_merging_needs_single_tokens_of_single_heads(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        replace_settings(EngineConfig(), MERGED | changes)


def test_keys_stored_before_rope_are_compared_as_attention_reads_them() -> None:
    """Of one eviction at the prompt's end: the same heirs whether keys are rotated then or before.

    Until then compact positions are those of the text.
    """
    found = {}
    for positions in ("original", "compact"):
        runner = Runner(build(MERGED | {"retention.positions": positions,
                                        "retention.when": "prefill", "retention.budget_tokens": 16,
                                        "scheduling.chunk_tokens": 64,
                                        "scheduling.token_budget": 64}))  # fmt: skip
        request_id = runner.add(tokens(60), 8)
        runner.step(1)
        stack = runner.engine.stack
        assert (stack.runner.mode == "compact") == (positions == "compact")
        blocks = stack.manager.requests[request_id]
        found[positions] = [
            (blocks.positions(group).tolist(), blocks.counts(group).round(4).tolist(),
             stack.store.vectors(group, stack.pool.offset[blocks.table[group, :4]],
                                 stack.specs.full[group], "v"))
            for group in range(len(blocks.table))
        ]  # fmt: skip
        runner.drain()
    assert max(max(counts) for _, counts, _ in found["original"]) > 2
    for one, two in zip(found["original"], found["compact"], strict=True):
        assert one[:2] == two[:2]
        torch.testing.assert_close(one[2], two[2], rtol=1e-4, atol=1e-5)
