"""Remarks on a change: each where one of its settings changes, and nowhere else."""

from typing import Any

import pytest

from tests.engine.harness import Runner, build, tokens

SNAPKV = {"retention.policy": "snapkv", "retention.window_tokens": 32}


@pytest.mark.parametrize(("changes", "wanted"), [
    ({"scheduling.preemption": "swap"}, ["swap_without_tier"]),
    ({"cache.mode": "off"}, ["cache_off_is_a_lesson"]),
    ({"cache.allocation": "contiguous"}, ["contiguous_shares_nothing"]),
    ({"tiers.dram_mib": 0.125}, ["dram_smaller_than_hbm"]),
    ({"tiers.dram_mib": 2.0, "tiers.disk_mib": 1.0}, ["disk_smaller_than_dram"]),
    (SNAPKV, ["window_covers_prompts"]),
    (SNAPKV | {"retention.window_tokens": 8}, []),
    ({"retention.policy": "h2o"}, []),
    ({"retention.policy": "h2o", "retention.budget_tokens": 79}, ["budget_below_window"]),
    ({"retention.policy": "h2o", "retention.window_tokens": 241}, ["budget_below_window"]),
    ({"retention.policy": "h2o", "retention.budget_tokens": 80}, []),
    ({"retention.budget_tokens": 16}, []),
    ({"cache.k_format": "int8"}, []),
])  # fmt: skip
def test_what_surprises_is_told_once(changes: dict[str, Any], wanted: list[str]) -> None:
    runner = Runner(build({"cache.hbm_budget_mib": 0.5}))
    request_id = runner.add(tokens(24), 4)
    runner.step()
    assert runner.engine.preview(changes).notes == wanted
    assert runner.engine.apply(changes).notes == wanted
    later = runner.engine.apply({"scheduling.chunk_tokens": 8})
    assert later.notes == [], "the change was another"
    runner.drain()
    assert len(runner.outputs[request_id]) == 4
