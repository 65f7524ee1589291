"""What a random workload may change: every setting, but for those that name what is not there."""

from typing import Any

from workbench.config import EngineConfig, replace_settings
from workbench.settings.cache import EVICTION_ORDERS, GROUPINGS, PREFIX_INDEXES
from workbench.settings.retention import (
    BUDGET_SPLITS,
    GQA_REDUCTIONS,
    MERGES,
    RETENTION_POLICIES,
    SPARSE_READS,
)
from workbench.settings.tiers import (
    ADMISSIONS,
    BACKPRESSURES,
    DISK_CODECS,
    DISK_LAYOUTS,
    INCLUSIONS,
    LOADS,
    OBJECT_SPLITS,
    PLACEMENTS,
    PREFETCHES,
    RETRIEVALS,
    WRITES,
)

START: dict[str, Any] = {
    "cache.hbm_budget_mib": 0.125, "cache.block_size": 4, "cache.k_format": "fp32",
    "cache.v_format": "fp32", "scheduling.chunk_tokens": 16, "scheduling.token_budget": 32,
    "scheduling.admit_whole_prompt": False, "tiers.dram_mib": 0.05, "tiers.disk_mib": 1.0,
    "scheduling.preemption": "swap",
    "tiers.gate": False, "retention.sink_tokens": 4, "retention.window_tokens": 8,
    "retention.budget_tokens": 24,
}  # fmt: skip

_EXACT = ("fp32", "fp32")
PURE: dict[str, Any] = {
    "cache.layer_plan": "",
    "cache.k_format": "fp32", "cache.v_format": "fp32", "retention.policy": "none",
    "cache.reuse": "exact", "retention.sparse": "off",
    "tiers.retrieval": "all", "tiers.disk_codec": "none",
}  # fmt: skip
CHANGES: dict[str, list[dict[str, Any]]] = {
    "hot": [
        {path: value}
        for path, values in {
            "scheduling.order": ("fcfs", "priority", "longest-prefix-first"),
            "scheduling.preemption": ("swap", "swap", "recompute"),
            "scheduling.token_budget": (8, 32, 64),
            "scheduling.chunk_tokens": (4, 16, 33),
            "scheduling.max_num_seqs": (4, 16),
            "scheduling.watermark": (0.0, 0.05),
            "scheduling.admit_whole_prompt": (True, False, False),
            "cache.prefix_caching": (True, True, True, True, False),
            "cache.reuse": ("recoded", "exact"),
            "cache.index": PREFIX_INDEXES,
            "cache.partial_hits": (True, False),
            "cache.prompt_caching": ("automatic", "automatic", "explicit"),
            "cache.min_cacheable_tokens": (8, 64),
            "cache.eviction": EVICTION_ORDERS,
            "tiers.dram_mib": (0.0, 0.02, 0.03, 0.05, 0.1),
            "tiers.disk_mib": (0.0, 0.5, 1.0),
            "tiers.gate": (False, False, True),
            "tiers.write": WRITES,
            "tiers.inclusive": INCLUSIONS,
            "tiers.admission": ADMISSIONS,
            "tiers.watermark": (0.8, 1.0),
            "tiers.prefetch": PREFETCHES,
            "tiers.prefetch_base_s": (0.0, 2.0),
            "tiers.prefetch_per_ki_s": (0.0, 0.1),
            "tiers.prefetch_most_s": (0.0, 30.0),
            "tiers.write_hits": (1, 2),
            "tiers.evict_ratio": (0.05, 0.3),
            "tiers.load": LOADS,
            "tiers.prestage": (False, True),
            "tiers.policy": PLACEMENTS,
            "tiers.retrieval": RETRIEVALS,
            "tiers.retrieval_share": (0.5, 0.9),
            "tiers.disk_codec": DISK_CODECS,
            "tiers.disk_layout": DISK_LAYOUTS,
            "tiers.disk_coalesce": (True, False),
            "tiers.disk_keep": (False, True),
            "tiers.dram_throttle_mb_s": (0.0, 0.0, 200.0),
            "tiers.disk_throttle_mb_s": (0.0, 0.0, 100.0),
            "tiers.shared": ("off", "off", "store"),
            "tiers.shared_mib": (0.5, 1.0),
            "tiers.shared_throttle_mb_s": (0.0, 0.0, 100.0),
            "tiers.object_mib": (0.5, 1.0),
            "tiers.object_throttle_mb_s": (0.0, 0.0, 100.0),
            "tiers.object_split": OBJECT_SPLITS,
            "tiers.backpressure": BACKPRESSURES,
            "tiers.backlog_s": (0.0, 1.0),
            "retention.policy": ("none", *RETENTION_POLICIES),
            "retention.level": ("page", "token"),
            "retention.when": ("both", "both", "prefill", "decode"),
            "retention.split": BUDGET_SPLITS,
            "retention.ada_floor": (0.0, 0.2),
            "retention.merge": MERGES,
            "retention.gqa_reduce": GQA_REDUCTIONS,
            "retention.sparse": SPARSE_READS,
            "retention.sparse_pages": (1, 4),
            "retention.sparse_share": (0.0, 0.3),
            "retention.sparse_outliers": (0, 2),
            "retention.sparse_dense_layers": (0, 1),
            "retention.budget_tokens": (16, 24, 40),
            "retention.sink_tokens": (0, 4),
            "retention.window_tokens": (4, 8),
            "retention.merge_cosine": (0.0, 0.6),
        }.items()
        for value in values
    ],
    "recode": [
        {"cache.k_format": k_format, "cache.v_format": v_format}
        for k_format, v_format in (
            _EXACT, _EXACT, _EXACT, ("bf16", "bf16"), ("int8", "int8"), ("int8", "int4"),
            ("fp8_e4m3", "bf16"), ("fp32", "fp8_e4m3"), ("int4", "int4"), ("kivi4", "kivi4"),
            ("kivi2", "int4"), ("turbo4", "turbo4"), ("int4_rotated", "nvfp4"),
            ("fp8_e4m3_token", "fp8_e5m2"), ("fp8_e4m3_head", "kivi3"),
            ("int8", "kvquant3"), ("bf16", "lowrank"),
        )
    ] + [
        {path: value}
        for path, values in {
            "cache.layer_plan": ("", "", "0=bf16", "1=kivi4; 2=int8/int4"),
            "cache.residual_tokens": (0, 0, 8),
            "cache.sink_tokens": (-1, 0, 8),
            "cache.outlier_pages": (0, 0, 1),
            "cache.kivi_group": (0, 0, 8),
            "cache.rank": (0, 8),
            "cache.rank_heads": (1, 1, 2),
        }.items()
        for value in values
    ],
    "rebuild": [{"cache.k_format": "kvquant4", "cache.v_format": "lowrank_int4"}] + [
        {path: value}
        for path, values in {
            "cache.hbm_budget_mib": (0.1, 0.125, 0.2),
            "cache.block_size": (4, 4, 8),
            "cache.grouping": GROUPINGS,
            "cache.allocation": ("paged", "paged", "paged", "paged", "contiguous"),
            "cache.mode": ("on", "on", "on", "on", "off"),
            "cache.values": ("hbm", "hbm", "hbm", "dram"),
            "cache.basis": ("calibrated", "calibrated", "sequence"),
            "retention.positions": ("original", "compact"),
            "model.max_model_len": (256, 512),
        }.items()
        for value in values
    ],
}  # fmt: skip


def start_config() -> EngineConfig:
    """Small pool, small tiers, fp32: pressure from the first requests on."""
    return replace_settings(EngineConfig(), START)


def is_lossy(config: EngineConfig) -> bool:
    """Whether tokens may differ from the naive loop's under this config."""
    exact = (config.cache.k_format, config.cache.v_format) == _EXACT
    retention = config.retention
    leaves_out = retention.policy != "none" or retention.sparse != "off"
    tiers_lose = config.tiers.retrieval != "all" or config.tiers.disk_codec == "cachegen"
    return not exact or bool(config.cache.layer_plan) or leaves_out or tiers_lose
