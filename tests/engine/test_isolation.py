"""One request's failure never stops the loop."""

import numpy as np

from workbench.cache.retention import StoredTokens
from workbench.config import EngineConfig, RetentionSettings, replace_settings
from workbench.engine.builtin import builtin_registry
from workbench.engine.engine import Engine
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, SamplingParams


class Careless:
    """A user's policy that fails on long requests."""

    needs_mass = False
    needs_keys = False
    needs_queries = False
    min_observed_tokens = 0

    def tail_queries(self, settings: RetentionSettings) -> int:
        return 0

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        if tokens.num_tokens > 24:
            raise ZeroDivisionError("division by zero")
        return np.zeros(len(tokens.positions))


def test_a_policy_that_raises_ends_only_its_request() -> None:
    registry = builtin_registry()
    registry._factories["retention"]["sink+window"] = Careless
    config = replace_settings(
        EngineConfig(),
        {
            "cache.hbm_budget_mib": 1.0,
            "cache.block_size": 4,
            "retention.policy": "sink+window",
            "retention.budget_tokens": 16,
            "retention.sink_tokens": 4,
            "retention.window_tokens": 8,
        },
    )
    engine = Engine(config, random_model(2), registry=registry)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    good = engine.add_request(RequestSpec(token_ids=[1, 2, 3], sampling=params))
    bad = engine.add_request(RequestSpec(token_ids=list(range(1, 24)), sampling=params))
    errors, tokens = {}, {good: 0, bad: 0}
    while engine.has_work():
        for output in engine.step():
            tokens[output.request_id] += len(output.new_token_ids)
            if output.error:
                errors[output.request_id] = output.error
        assert engine.check_integrity().ok
    assert errors == {bad: f"request {bad} failed: ZeroDivisionError: division by zero"}
    assert tokens[good] == 8
    assert engine.stack.pool.ref_cnt.sum() == 0
