"""What attention keeps of a cached prefix: a hit leaves queries to judge it by."""

import pytest

from tests.engine.harness import Runner, build, tokens
from workbench.structural.retention.policies import LEAST_QUERIES, AttentionMass, HeavyHitters

PROMPT, SINKS, WINDOW = 200, 4, 8
POLICIES = {"h2o": HeavyHitters, "attention-mass": AttentionMass}


def agreements(policy: str) -> tuple[int, list[float]]:
    """Cached tokens of a second reading, and in each group the share chosen by both."""
    runner = Runner(build({
        "retention.policy": policy, "retention.level": "token", "retention.budget_tokens": 48,
        "retention.sink_tokens": SINKS, "retention.window_tokens": WINDOW,
        "cache.grouping": "head", "cache.hbm_budget_mib": 2.0, "retention.when": "prefill",
        "model.max_model_len": 512, "scheduling.chunk_tokens": 64,
        "scheduling.token_budget": 64}))  # fmt: skip
    prompt, found = tokens(PROMPT), []
    for _ in range(2):
        request_id = runner.add(prompt, 2)
        request = runner.engine.requests[request_id]
        runner.until(lambda request=request: request.num_computed_tokens >= PROMPT)
        blocks = runner.engine.stack.manager.requests[request_id]
        open_to = set(range(SINKS, PROMPT - WINDOW))
        found.append(
            [open_to & set(blocks.positions(group).tolist()) for group in range(len(blocks.table))]
        )
        runner.drain()
    cached = runner.engine.finished[request_id].num_cached_tokens
    pairs = zip(*found, strict=True)
    return cached, [len(miss & hit) / len(miss) for miss, hit in pairs]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_hit_is_judged_much_as_a_miss(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one query the prefix was ranked by it alone; 64 say most of what all of them say."""
    cached, found = agreements(policy)
    assert cached == (PROMPT - LEAST_QUERIES) // 4 * 4
    monkeypatch.setattr(POLICIES[policy], "min_observed_tokens", 1)
    cached, before = agreements(policy)
    assert cached == PROMPT - 4
    assert all(after > one for after, one in zip(found, before, strict=True))
    assert sum(found) / len(found) > 1.4 * sum(before) / len(before)
