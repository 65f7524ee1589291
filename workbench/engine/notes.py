"""Short remarks on a change of settings that may surprise; the app's text files hold the sentences.

Each is made once, where one of the settings it is about changes.
"""

from typing import TYPE_CHECKING

from workbench.config import EngineConfig
from workbench.structural.retention.selection import floor_tokens
from workbench.views import ApplyNote

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

ABOUT: dict[ApplyNote, tuple[str, ...]] = {
    "disk_smaller_than_dram": ("tiers.disk_mib", "tiers.dram_mib"),
    "dram_smaller_than_hbm": ("tiers.dram_mib", "cache.hbm_budget_mib"),
    "swap_without_tier": ("scheduling.preemption", "tiers.dram_mib", "tiers.disk_mib"),
    "cache_off_is_a_lesson": ("cache.mode",),
    "contiguous_shares_nothing": ("cache.allocation",),
    "window_covers_prompts": ("retention.policy", "retention.window_tokens"),
    "budget_below_window": (
        "retention.policy",
        "retention.budget_tokens",
        "retention.sink_tokens",
        "retention.window_tokens",
    ),
}


def notes(engine: "Engine", config: EngineConfig, kinds: dict[str, str]) -> list[ApplyNote]:
    """What is worth a remark of the changes `kinds` (by path) to `config`."""
    tiers, cache, retention = config.tiers, config.cache, config.retention
    policy = engine.registry.create("retention", retention.policy)
    floor = floor_tokens(retention)
    prompts = [request.num_prompt_tokens for request in engine.requests.values()]
    found: dict[ApplyNote, bool] = {
        "disk_smaller_than_dram": 0 < tiers.disk_mib < tiers.dram_mib,
        "dram_smaller_than_hbm": 0 < tiers.dram_mib < cache.hbm_budget_mib,
        "swap_without_tier": config.scheduling.preemption == "swap" and not tiers.any_on,
        "cache_off_is_a_lesson": cache.mode == "off",
        "contiguous_shares_nothing": cache.allocation == "contiguous",
        "budget_below_window": retention.policy != "none" and retention.budget_tokens < floor,
        "window_covers_prompts": policy.tail_queries(retention) >= min(prompts, default=2**62),
    }
    return [name for name, paths in ABOUT.items() if found[name] and kinds.keys() & set(paths)]
