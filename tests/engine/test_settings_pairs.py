"""All pairs of settings' values run on the random model, and every invariant holds."""

import itertools
import random
from typing import Any

import pytest

from tests.engine.harness import Runner, build, tokens
from workbench.config import all_settings

VALUES: dict[str, tuple[Any, ...]] = {
    "model.max_model_len": (128, 512),
    "cache.hbm_budget_mib": (0.125, 0.25),
    "cache.block_size": (4, 8, 16),
    "cache.grouping": ("model", "halves"),
    "cache.k_format": ("bf16", "fp32", "fp8_e4m3", "int8", "int4"),
    "cache.v_format": ("bf16", "fp32", "fp8_e4m3", "int8", "int4"),
    "cache.mode": ("on", "off"),
    "cache.allocation": ("paged", "contiguous"),
    "cache.prefix_caching": (True, False),
    "cache.reuse": ("recoded", "exact"),
    "scheduling.order": ("fcfs", "priority", "longest-prefix-first"),
    "scheduling.token_budget": (5, 64),
    "scheduling.max_num_seqs": (2, 16),
    "scheduling.chunk_tokens": (3, 32),
    "scheduling.preemption": ("recompute", "swap"),
    "scheduling.watermark": (0.0, 0.2),
    "scheduling.admit_whole_prompt": (True, False),
    "tiers.dram_mib": (0.0, 0.06),
    "tiers.disk_mib": (0.0, 0.5),
    "tiers.policy": ("lru",),
    "tiers.gate": (True, False),
    "tiers.dram_throttle_mb_s": (0.0, 50.0),
    "tiers.disk_throttle_mb_s": (0.0, 50.0),
    "retention.policy": ("none", "sink+window", "attention-mass"),
    "retention.budget_tokens": (16, 64),
    "retention.sink_tokens": (0, 4),
    "retention.window_tokens": (1, 8),
}
NOT_LIVE = {"model.path", "model.weight_format", "model.num_threads", "tiers.disk_path"}

Row = dict[str, Any]


def covering_array(values: dict[str, tuple[Any, ...]], seed: int = 0) -> list[Row]:
    """Rows that contain each pair of values of two settings at least once.

    Greedy: each row starts from a missing pair, and every other setting takes the value that
    covers most missing pairs (after Cohen et al., the AETG system).
    """
    rng = random.Random(seed)
    missing = {
        (first, a, second, b)
        for first, second in itertools.combinations(values, 2)
        for a in values[first] for b in values[second]
    }  # fmt: skip
    rows: list[Row] = []
    while missing:
        first, a, second, b = min(missing, key=repr)
        row: Row = {first: a, second: b}
        for name in rng.sample(list(values), len(values)):
            if name not in row:
                row[name] = max(values[name], key=lambda value: _gain(row, name, value, missing))
        pairs = itertools.combinations(values, 2)
        missing -= {(one, row[one], two, row[two]) for one, two in pairs}
        rows.append(row)
    return rows


def _gain(row: Row, name: str, value: Any, missing: set[tuple[Any, ...]]) -> int:
    return sum(
        (other, row[other], name, value) in missing or (name, value, other, row[other]) in missing
        for other in row
    )


ROWS = covering_array(VALUES)


def test_every_setting_and_pair_is_covered() -> None:
    assert set(VALUES) | NOT_LIVE == set(all_settings())
    for first, second in itertools.combinations(VALUES, 2):
        seen = {(row[first], row[second]) for row in ROWS}
        assert len(seen) == len(VALUES[first]) * len(VALUES[second])


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_sixty_steps_with(number: int) -> None:
    runner = Runner(build(ROWS[number], num_layers=2 + number % 2))
    shared = tokens(24, 50)
    for step in range(60):
        if step % 5 == 0 and len(runner.engine.requests) < 8:
            prompt = shared[: step % 25] + tokens(3 + step % 11, step)
            runner.add(prompt, 5 + step % 23, priority=step % 3, temperature=step % 2 * 0.8)
        if step == 30:
            runner.engine.abort(next(iter(runner.engine.requests)))
        runner.step()
        if step % 20 == 0:
            runner.engine.frame(step, state="running")
    runner.drain()
    assert not any(runner.errors.values()), runner.errors
    runner.engine.close()
