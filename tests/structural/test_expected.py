"""Expected attention: statistics of queries, whatever the chunks; what it needs to have seen."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, tokens
from workbench.structural.retention.expected import (
    QueryStatistics,
    expected_scores,
    mean_rotation,
    reduce_heads,
)
from workbench.structural.retention.policies import ExpectedAttention

KEPT = {
    "retention.policy": "expected-attention", "retention.budget_tokens": 32,
    "retention.sink_tokens": 4, "retention.window_tokens": 8,
}  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_chunks_give_the_statistics_of_all(chunks: list[int], seed: int) -> None:
    rows = torch.randn(sum(chunks), 2, 8, generator=torch.Generator().manual_seed(seed)) * 3 + 5
    known = QueryStatistics(1, 2, 8, "cpu")
    for part in rows.split(chunks):
        known.add(0, part)
    if not len(rows):
        assert not known.scatter.any()
        return
    wide = rows.double().transpose(0, 1)
    around = wide - wide.mean(1, keepdim=True)
    torch.testing.assert_close(known.mean[0].double(), wide.mean(1), rtol=1e-5, atol=1e-5)
    scatter = around.transpose(1, 2) @ around
    torch.testing.assert_close(known.scatter[0].double(), scatter, rtol=1e-4, atol=1e-3)


def test_the_expectation_is_that_of_drawn_queries() -> None:
    """E exp(q.k / sqrt d) over many normal queries, rotated by one position."""
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 6, 1, 8, generator=generator)
    factor = torch.randn(8, 8, generator=generator) / 3
    queries = torch.randn(200_000, 1, 8, generator=generator) @ factor.T + 0.5
    known = QueryStatistics(1, 1, 8, "cpu")
    known.add(0, queries)
    rotation = mean_rotation([1.0, 0.5, 0.2, 0.1], 7, "cpu", num_positions=1)
    mean, covariance = known.future(0, rotation)
    found = expected_scores(keys, values, mean, covariance, log_count=torch.zeros(6), num_first=0,
                            reduce="mean")  # fmt: skip
    cos, sin = rotation
    one, two = queries[:, 0].chunk(2, -1)
    turned = torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
    weight = torch.exp(turned @ keys[:, 0].T / 8**0.5).mean(0)
    expected = weight / weight.sum() * values[:, 0].norm(dim=-1)
    torch.testing.assert_close(found[0], expected, rtol=0.02, atol=1e-3)


def test_a_slot_that_stands_for_two_counts_twice() -> None:
    keys = torch.ones(2, 1, 4)
    values = torch.ones(2, 1, 4)
    scores = expected_scores(
        keys, values, torch.zeros(1, 4), torch.zeros(1, 4, 4),
        log_count=torch.tensor([2.0, 1.0]).log(), num_first=0, reduce="mean",
    )  # fmt: skip
    assert scores[0, 0] == pytest.approx(2 * scores[0, 1])


def test_reductions() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    assert reduce_heads(values, 0, "mean").tolist() == [2.0, 1.0]
    assert reduce_heads(values, 0, "max").tolist() == [3.0, 2.0]
    assert reduce_heads(values, 0, "sum").tolist() == [4.0, 2.0]


@pytest.mark.parametrize("positions", ["original", "compact"])
def test_queries_are_seen_once_and_before_rope(positions: str) -> None:
    """Preempted and computed again, a request's statistics stay; stored or not before RoPE."""
    runner = Runner(build(KEPT | {"retention.budget_tokens": 200, "retention.positions": positions,
                                  "cache.prefix_caching": False}))  # fmt: skip
    request_id = runner.add(tokens(30), 20)
    runner.step(8)
    known = runner.engine.retainer.queries.statistics[request_id]
    request = runner.engine.requests[request_id]
    before = request.num_computed_tokens
    assert known.num_seen == [before - 4] * 2
    runner.engine.scheduler.preempt(request, "test")
    runner.until(lambda: request.num_computed_tokens > before)
    count = request.num_computed_tokens
    assert known.num_seen == [count - 4] * 2
    other = Runner(build(KEPT | {"retention.budget_tokens": 200, "cache.prefix_caching": False}))
    same = other.add(tokens(30), 20)
    other.until(lambda: other.engine.requests[same].num_computed_tokens == count)
    torch.testing.assert_close(
        other.engine.retainer.queries.statistics[same].mean, known.mean, rtol=1e-3, atol=1e-4
    )
    runner.drain()
    runner.one(tokens(8), 2)
    assert request_id not in runner.engine.retainer.queries.statistics


def test_a_hit_leaves_enough_queries_to_observe() -> None:
    runner = Runner(build(KEPT | {"retention.budget_tokens": 200}))
    prompt = tokens(120)
    runner.one(prompt, 2)
    again = runner.add(prompt, 2)
    runner.step()
    least = ExpectedAttention.min_observed_tokens
    assert runner.engine.requests[again].num_cached_tokens == (120 - least) // 4 * 4
    runner.drain()


def test_the_ledger_counts_the_statistics() -> None:
    runner = Runner(build(KEPT))
    runner.add(tokens(30), 4)
    runner.step(2)
    queries = runner.engine.retainer.queries
    held = sum(x.mean.nbytes + x.scatter.nbytes for x in queries.statistics.values())
    lines = {line.name: line.num_bytes for line in runner.engine.snapshot().ledger}
    assert lines["query_statistics"] == held > 0
    assert np.isfinite(held)
    runner.drain()
