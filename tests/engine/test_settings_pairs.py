"""All pairs of settings' values run on the random model, and every invariant holds."""

import functools
import itertools
from typing import Any

import pytest

from tests.engine.harness import Runner, build, tokens
from tests.engine.pairwise import Row, pairwise
from workbench.cache import row_slices
from workbench.cache_control import CacheBreakpoint
from workbench.config import EngineConfig, all_settings, replace_settings
from workbench.errors import SettingError
from workbench.settings.cache import EVICTION_ORDERS, GROUPINGS, PREFIX_INDEXES, PROMPT_CACHING
from workbench.settings.retention import BUDGET_SPLITS, GQA_REDUCTIONS, MERGES, SPARSE_READS
from workbench.settings.tiers import (
    ADMISSIONS,
    BACKPRESSURES,
    DISK_LAYOUTS,
    INCLUSIONS,
    LOADS,
    OBJECT_SPLITS,
    PLACEMENTS,
    PREFETCHES,
    RETRIEVALS,
    WRITES,
)

VALUES: dict[str, tuple[Any, ...]] = {
    "model.max_model_len": (128, 512),
    "cache.hbm_budget_mib": (0.1875, 0.25),
    "cache.block_size": (4, 8, 16),
    "cache.grouping": GROUPINGS,
    "cache.k_format": ("bf16", "fp32", "fp8_e4m3", "int8", "lowrank"),
    "cache.v_format": ("bf16", "fp32", "fp8_e4m3", "int4", "kvquant3"),
    "cache.rank": (0, 16),
    "cache.rank_plan": ("", "0=8"),
    "cache.rank_heads": (1, 2),
    "cache.basis": ("calibrated", "sequence"),
    "cache.calibration": ("needed", "all"),
    "cache.layer_plan": ("", "0=fp8_e4m3/int8"),
    "cache.kivi_group": (0, 8),
    "cache.residual_tokens": (0, 10),
    "cache.sink_tokens": (0, 10),
    "cache.outlier_pages": (0, 2),
    "cache.partial_hits": (False, True),
    "cache.index": PREFIX_INDEXES,
    "cache.prompt_caching": PROMPT_CACHING,
    "cache.min_cacheable_tokens": (1, 12),
    "cache.eviction": EVICTION_ORDERS,
    "cache.values": ("hbm", "dram"),
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
    "tiers.dram_mib": (0.06, 0.0),
    "tiers.disk_mib": (0.0, 0.5),
    "tiers.policy": PLACEMENTS,
    "tiers.gate": (True, False),
    "tiers.dram_throttle_mb_s": (0.0, 50.0),
    "tiers.disk_throttle_mb_s": (0.0, 50.0),
    "tiers.disk_codec": ("none", "planes+zstd", "cachegen"),
    "tiers.disk_layout": DISK_LAYOUTS,
    "tiers.disk_coalesce": (True, False),
    "tiers.object_split": OBJECT_SPLITS,
    "tiers.backpressure": BACKPRESSURES,
    "tiers.backlog_s": (0.001, 1.0),
    "tiers.write": WRITES,
    "tiers.write_hits": (1, 2),
    "tiers.inclusive": INCLUSIONS,
    "tiers.admission": ADMISSIONS,
    "tiers.watermark": (0.7, 1.0),
    "tiers.evict_ratio": (0.05, 0.3),
    "tiers.prefetch": PREFETCHES,
    "tiers.prefetch_base_s": (0.0, 2.0),
    "tiers.prefetch_per_ki_s": (0.0, 0.1),
    "tiers.prefetch_most_s": (0.01, 30.0),
    "tiers.prestage": (False, True),
    "tiers.load": LOADS,
    "tiers.retrieval": RETRIEVALS,
    "tiers.retrieval_share": (0.5, 0.9),
    "retention.policy": ("none", "sink+window", "attention-mass"),
    "retention.budget_tokens": (16, 64),
    "retention.sink_tokens": (0, 4),
    "retention.window_tokens": (1, 8),
    "retention.level": ("page", "token"),
    "retention.when": ("both", "prefill", "decode"),
    "retention.split": BUDGET_SPLITS,
    "retention.ada_floor": (0.0, 0.2),
    "retention.positions": ("original", "compact"),
    "retention.gqa_reduce": GQA_REDUCTIONS,
    "retention.merge": MERGES,
    "retention.merge_cosine": (-1.0, 0.6),
    "retention.sparse": SPARSE_READS,
    "retention.sparse_pages": (1, 4),
    "retention.sparse_share": (0.0, 0.5),
    "retention.sparse_outliers": (0, 2),
    "retention.sparse_dense_layers": (0, 1),
}
NOT_LIVE = {"model.path", "model.weight_format", "model.num_threads", "tiers.disk_path",
            "tiers.disk_keep", "tiers.shared", "tiers.shared_address", "tiers.shared_mib",
            "tiers.shared_throttle_mb_s", "tiers.object_url", "tiers.object_mib",
            "tiers.object_throttle_mb_s", "tiers.disk_transport", "tiers.shared_transport",
            "tiers.object_transport"}  # fmt: skip

IMPOSSIBLE = {  # what a layer or head has of its own needs groups, and merging takes single tokens
    ("cache.grouping", "retention.split"): 8,
    ("cache.grouping", "cache.layer_plan"): 2,
    ("cache.grouping", "cache.rank_plan"): 2,
    ("cache.grouping", "cache.rank_heads"): 1,
    ("cache.rank_heads", "retention.split"): 2,
    ("cache.rank_heads", "retention.merge"): 2,
    ("cache.k_format", "tiers.disk_codec"): 3,
    ("cache.v_format", "tiers.disk_codec"): 3,
    ("cache.layer_plan", "tiers.disk_codec"): 1,
    ("tiers.disk_codec", "tiers.disk_layout"): 2,
    ("cache.grouping", "retention.merge"): 6,
    ("cache.residual_tokens", "cache.mode"): 1,
    ("cache.residual_tokens", "cache.allocation"): 1,
    ("cache.residual_tokens", "retention.level"): 1,
    ("cache.residual_tokens", "retention.merge"): 2,
    ("cache.sink_tokens", "cache.mode"): 1,
    ("cache.sink_tokens", "cache.allocation"): 1,
    ("cache.sink_tokens", "retention.level"): 1,
    ("cache.sink_tokens", "retention.merge"): 2,
    ("cache.outlier_pages", "cache.mode"): 1,
    ("cache.outlier_pages", "cache.allocation"): 1,
    ("cache.outlier_pages", "retention.level"): 1,
    ("cache.outlier_pages", "retention.merge"): 2,
    ("cache.values", "cache.mode"): 1,
    ("cache.values", "cache.allocation"): 1,
    ("cache.values", "tiers.dram_mib"): 1,
    ("cache.values", "tiers.dram_throttle_mb_s"): 1,
    ("cache.values", "retention.level"): 1,
    ("cache.values", "retention.merge"): 2,
    ("retention.level", "retention.merge"): 2,
    ("retention.positions", "retention.sparse"): 2,
}

NUM_ROWS = 64


def accepts(row: Row) -> bool:
    try:
        replace_settings(EngineConfig(), row)
    except SettingError:
        return False
    return True


@functools.cache
def rows() -> list[Row]:
    """The rows, made on first use: every process collects this file, and few run it."""
    return pairwise(VALUES, accepts)


def test_every_setting_and_pair_is_covered() -> None:
    assert set(VALUES) | NOT_LIVE == set(all_settings())
    assert len(rows()) == NUM_ROWS, "NUM_ROWS has to be what the values above give"
    for first, second in itertools.combinations(VALUES, 2):
        seen = {(row[first], row[second]) for row in rows()}
        impossible = IMPOSSIBLE.get((first, second), 0)
        assert len(seen) == len(VALUES[first]) * len(VALUES[second]) - impossible, (first, second)


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[] if n % 6 == 0 else [pytest.mark.long]) for n in range(NUM_ROWS)],
)
def test_sixty_steps_with(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_slices, "LEAST_SLICE_BYTES", 1)  # so that small rows come by layers too
    runner = Runner(build(rows()[number], num_layers=2 + number % 2))
    shared = tokens(24, 50)
    for step in range(60):
        if step % 5 == 0 and len(runner.engine.requests) < 8:
            prompt = shared[: step % 25] + tokens(3 + step % 11, step)
            points = [CacheBreakpoint(at=len(prompt))] if step % 2 else []
            runner.add(prompt, 5 + step % 23, priority=step % 3, temperature=step % 2 * 0.8,
                       cache_control=points)  # fmt: skip
        if step == 30:
            runner.engine.abort(next(iter(runner.engine.requests)))
        runner.step()
        if step % 20 == 0:
            runner.engine.frame(step, state="running")
    runner.drain()
    assert not any(runner.errors.values()), runner.errors
    runner.engine.close()
