"""I9: greedy tokens in fp32 equal the naive loop's, whatever the schedule."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.config import all_settings, get_setting
from workbench.model.naive import naive_greedy

TIERS = {"tiers.dram_mib": 0.25, "tiers.disk_mib": 1.0, "tiers.gate": False}
FAST = settings(
    max_examples=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def serve(runner: Runner, seed: int, num_requests: int = 6, longest: int = 30) -> None:
    """Requests that share prefixes and arrive over time; each must equal the naive loop."""
    rng = random.Random(seed)
    texts = [tokens(40, 100 + at) for at in range(2)]
    asked: dict[str, tuple[list[int], int]] = {}
    for _ in range(num_requests):
        own = tokens(rng.randrange(1, 10), rng.randrange(2**31))
        prompt = rng.choice(texts)[: rng.randrange(41)] + own
        count = rng.randrange(1, longest)
        asked[runner.add(prompt, count, priority=rng.randrange(3))] = prompt, count
        runner.step(rng.randrange(4))
    runner.drain()
    for request_id, (prompt, count) in asked.items():
        assert len(runner.outputs[request_id]) == count, runner.errors
        assert_naive(runner.engine.model, prompt, runner.outputs[request_id])


def test_the_teacher_forced_check_is_the_naive_loop() -> None:
    prompt = tokens(17)
    new, margins = naive_greedy(model().decoder, prompt, 20)
    assert min(margins) > 1e-3
    assert Runner(build()).one(prompt, 20) == new
    with pytest.raises(AssertionError):
        assert_naive(model(), prompt, new[:10] + [new[10] + 1] + new[11:])


@FAST
@given(
    seed=st.integers(0, 2**20),
    order=st.sampled_from(["fcfs", "priority", "longest-prefix-first"]),
    preemption=st.sampled_from(["recompute", "swap"]),
    budget=st.sampled_from([5, 16, 64]),
    chunk=st.sampled_from([3, 16, 40]),
    size=st.sampled_from([32, 40, 64]),
    whole=st.booleans(),
    tiers=st.booleans(),
    grouping=st.sampled_from(["model", "halves"]),
    num_layers=st.sampled_from([2, 3]),
)
def test_random_schedules(
    seed: int, order: str, preemption: str, budget: int, chunk: int, size: int, whole: bool,
    tiers: bool, grouping: str, num_layers: int,
) -> None:  # fmt: skip
    changes: dict[str, Any] = {
        "scheduling.order": order, "scheduling.preemption": preemption,
        "scheduling.token_budget": budget, "scheduling.chunk_tokens": chunk,
        "scheduling.admit_whole_prompt": whole, "cache.grouping": grouping,
        "cache.hbm_budget_mib": pages(size, num_layers),
    }  # fmt: skip
    runner = Runner(build(changes | (TIERS if tiers else {}), num_layers))
    serve(runner, seed)
    runner.engine.close()


LAYOUTS: dict[str, dict[str, Any]] = {
    "one group": {},
    "two groups": {"cache.grouping": "halves"},
    "contiguous": {"cache.allocation": "contiguous", "cache.hbm_budget_mib": pages(64)},
    "cache off": {"cache.mode": "off"},
    "no prefix caching": {"cache.prefix_caching": False},
    "blocks of 16": {"cache.block_size": 16},
    "tokens one by one": {"scheduling.token_budget": 1},
    "one request at a time": {"scheduling.max_num_seqs": 1},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    serve(Runner(build(LAYOUTS[layout])), seed=3)


def test_two_groups_of_different_size() -> None:
    """Three layers in halves: two page classes share the slabs."""
    runner = Runner(build({"cache.grouping": "halves", "cache.hbm_budget_mib": pages(40, 3),
                           "scheduling.admit_whole_prompt": False}, 3))  # fmt: skip
    assert len(runner.engine.stack.pool.classes) == 2
    serve(runner, seed=5, num_requests=8)
    assert runner.engine.metrics.num_preemptions > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preemption(preemption: str) -> None:
    runner = Runner(build(TIERS | {"cache.hbm_budget_mib": pages(32),
                                   "scheduling.admit_whole_prompt": False,
                                   "scheduling.preemption": preemption}))  # fmt: skip
    serve(runner, seed=9, num_requests=8, longest=60)
    assert runner.engine.metrics.num_preemptions > 2


@pytest.mark.parametrize("sizes", [(0.5, 0.0), (0.0, 1.0), (0.02, 1.0)])
def test_tier_round_trips(sizes: tuple[float, float]) -> None:
    dram, disk = sizes
    runner = Runner(build({"tiers.dram_mib": dram, "tiers.disk_mib": disk,
                           "cache.hbm_budget_mib": pages(32)}))  # fmt: skip
    prompts = [tokens(70, seed) for seed in range(3)]
    first = [runner.one(prompt, 12) for prompt in prompts]
    runner.engine.hierarchy.wait_io()
    again = [runner.one(prompt, 12) for prompt in prompts]
    assert again == first
    assert runner.engine.fetcher.counters.num_loaded_pages > 20
    for prompt, output in zip(prompts, first, strict=True):
        assert_naive(model(), prompt, output)
    runner.engine.close()


VALUES: dict[str, list[Any]] = {  # of settings whose choices are not named, or not mild enough
    "cache.hbm_budget_mib": [pages(48), 1.0], "model.max_model_len": [256, 1024],
    "cache.calibration": ["all"],  # of which fp32 pages take nothing
    "cache.min_cacheable_tokens": [1, 200], "tiers.dram_mib": [0.25, 0.0],
    "tiers.disk_mib": [1.0, 0.0], "tiers.disk_path": ["<folder>"],
    "tiers.dram_throttle_mb_s": [200.0], "tiers.disk_throttle_mb_s": [200.0],
    "tiers.shared_throttle_mb_s": [200.0], "tiers.object_throttle_mb_s": [200.0],
    "tiers.shared": ["store", "valkey", "off"],  # Mooncake needs packages of its own
    "tiers.shared_address": ["<folder>", ""],
    "tiers.shared_mib": [4.0, 0.0], "tiers.object_mib": [4.0],
    "tiers.object_url": ["<folder>", ""], "tiers.write_hits": [1], "tiers.watermark": [0.5],
    "tiers.evict_ratio": [0.2], "tiers.retrieval_share": [0.5], "tiers.backlog_s": [0.001],
    "tiers.prefetch_base_s": [0.0], "tiers.prefetch_per_ki_s": [1.0],
    "tiers.prefetch_most_s": [0.0],
    "scheduling.token_budget": [7, 64], "scheduling.max_num_seqs": [1, 32],
    "scheduling.chunk_tokens": [3, 64], "scheduling.watermark": [0.2],
    "retention.budget_tokens": [16, 64], "retention.sink_tokens": [0],
    "retention.window_tokens": [16], "model.num_threads": [1], "retention.merge_cosine": [0.9],
    "retention.ada_floor": [0.0],
    "retention.sparse_pages": [1], "retention.sparse_share": [0.5],
    "retention.sparse_dense_layers": [0], "retention.sparse_outliers": [0, 3],
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "cache.values": {"tiers.dram_mib": 1.0},
    "tiers.disk_keep": {"tiers.disk_mib": 1.0, "tiers.disk_path": "<folder>"},
    "tiers.shared_mib": {"tiers.shared": "store"},
    "tiers.disk_layout": {"tiers.disk_mib": 1.0},
    "tiers.disk_coalesce": {"tiers.disk_mib": 1.0},
    "tiers.backpressure": {"tiers.disk_mib": 1.0, "tiers.backlog_s": 0.001},
    "retention.split": {"cache.grouping": "head"},
    "retention.merge": {"cache.grouping": "head", "retention.level": "token"},
}
LEFT_OUT = {
    "retention.policy": "drops tokens",
    "tiers.disk_transport": "needs packages of its own: tests/spatial/test_disk_transports.py",
    "tiers.shared_transport": "the same: tests/spatial/test_shared_transports.py",
    "tiers.object_transport": "the same: tests/spatial/test_object_transports.py",
}
LIVE = [path for path, item in all_settings().items()
        if item.metadata["change"] in ("hot", "rebuild") and path not in LEFT_OUT]  # fmt: skip


def other_values(path: str, now: Any) -> list[Any]:
    """Values of a setting that keep the bytes exact, each different from the one before."""
    if path in VALUES:
        return VALUES[path]
    choices = all_settings()[path].metadata["choices"] or ([True, False] if now in (0, 1) else [])
    assert choices, f"VALUES has to name some of {path}"
    return [choice for choice in choices if choice != now] + [now]


@pytest.mark.parametrize("path", LIVE)
def test_every_exact_setting_changes_in_the_middle_of_streams(path: str, tmp_path: Path) -> None:
    needed = {name: str(tmp_path) if value == "<folder>" else value
              for name, value in NEEDED.get(path, {}).items()}  # fmt: skip
    runner = Runner(build({"cache.hbm_budget_mib": pages(64)} | needed))
    prompts = [tokens(30, 1), tokens(30, 1)[:20] + tokens(12, 2), tokens(9, 3)]
    ids = [runner.add(prompt, 40) for prompt in prompts]
    runner.step(4)
    for value in other_values(path, get_setting(runner.engine.config, path)):
        value = str(tmp_path) if value == "<folder>" else value
        report = runner.engine.apply({path: value})
        assert set(report.kinds) == {path}
        assert get_setting(runner.engine.config, path) == value
        runner.check()
        runner.step(5)
    runner.drain()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert len(runner.outputs[request_id]) == 40, "no request is lost"
        assert_naive(model(), prompt, runner.outputs[request_id])
    runner.engine.close()


@pytest.mark.parametrize("received", [1, 5, 19])
def test_resume_tokens(received: int) -> None:
    prompt = tokens(14)
    whole = Runner(build()).one(prompt, 20)
    rest = Runner(build()).one(prompt, 20, resume_tokens=whole[:received])
    assert whole[:received] + rest == whole
