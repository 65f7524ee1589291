"""What *This setting* measures: every setting that changes the numbers is measured, or named."""

from typing import Any

import pytest

from workbench.commands.bench import PLAIN
from workbench.config import EngineConfig, all_settings, replace_settings
from workbench.errors import SettingError
from workbench.quality.engines import check_changes
from workbench.quality.job_protocol import (
    LAB_SETTINGS,
    QUALITY_SETTINGS,
    TIER_SETTINGS,
    check_setting,
    not_measured,
    quality_changes,
)
from workbench.quality.results import Setting

# Settings that change when, where or whether something is kept, and no number that is read.
EXACT = {
    *(path for path in all_settings() if path.startswith(("model.", "scheduling."))),
    "cache.hbm_budget_mib", "cache.values", "cache.mode", "cache.allocation", "cache.partial_hits",
    "cache.index", "cache.prompt_caching", "cache.min_cacheable_tokens", "cache.eviction",
    "cache.reuse",
    "tiers.dram_mib", "tiers.disk_mib", "tiers.disk_path", "tiers.policy", "tiers.gate",
    "tiers.disk_transport", "tiers.disk_layout", "tiers.disk_coalesce", "tiers.dram_throttle_mb_s",
    "tiers.disk_throttle_mb_s", "tiers.disk_keep", "tiers.shared", "tiers.shared_address",
    "tiers.shared_mib", "tiers.shared_throttle_mb_s", "tiers.object_url", "tiers.object_mib",
    "tiers.object_throttle_mb_s", "tiers.object_split", "tiers.backpressure", "tiers.backlog_s",
    "tiers.write", "tiers.write_hits", "tiers.inclusive", "tiers.admission", "tiers.watermark",
    "tiers.evict_ratio", "tiers.load", "tiers.prestage", "tiers.prefetch", "tiers.prefetch_base_s",
    "tiers.prefetch_per_ki_s", "tiers.prefetch_most_s", "tiers.shared_transport",
    "tiers.object_transport",
    "tiers.retrieval_share",  # counts with `tiers.retrieval` alone
}  # fmt: skip


def test_every_setting_is_measured_named_or_exact() -> None:
    """A new setting has to be put into one of them."""
    lossy = {*QUALITY_SETTINGS, *TIER_SETTINGS}
    unknown = set(all_settings()) ^ (lossy | {*LAB_SETTINGS} | EXACT)
    assert not unknown, f"put into EXACT here, or into job_protocol's lists: {sorted(unknown)}"
    assert not lossy & (EXACT | {*LAB_SETTINGS}) and not {*QUALITY_SETTINGS} & {*TIER_SETTINGS}


@pytest.mark.parametrize("changes, told", [
    ({}, {}),
    ({"tiers.disk_codec": "cachegen"}, {}),  # no disk
    ({"tiers.disk_codec": "planes+zstd", "tiers.disk_mib": 64.0}, {}),  # lossless
    ({"tiers.disk_codec": "cachegen", "tiers.disk_mib": 64.0}, {"tiers.disk_codec": "cachegen"}),
    ({"tiers.retrieval": "skip"}, {}),  # nothing to fetch from
    ({"tiers.retrieval": "skip", "tiers.dram_mib": 64.0, "tiers.retrieval_share": 1.0}, {}),
    ({"tiers.retrieval": "late", "tiers.dram_mib": 64.0}, {"tiers.retrieval": "late"}),
])  # fmt: skip
def test_what_a_tier_loses_is_named(changes: dict[str, Any], told: dict[str, Any]) -> None:
    config = replace_settings(EngineConfig(), changes)
    assert not_measured(config) == told
    assert quality_changes(config) == {}, "no measurement claims it"


def test_the_benches_that_are_named_are_there() -> None:
    assert {*TIER_SETTINGS.values()} <= {*PLAIN, "tiers"}


@pytest.mark.parametrize("path, value, bench", [
    ("tiers.disk_codec", "cachegen", "codecs"), ("tiers.retrieval", "skip", "tiers"),
])  # fmt: skip
def test_a_file_cannot_have_it_measured_as_exact(path: str, value: str, bench: str) -> None:
    told = (
        f"{path} acts on prefixes that come back .*: leave it out, and run workbench bench {bench}"
    )
    with pytest.raises(SettingError, match=f"setting 'a': {told}"):
        check_setting(Setting(name="a", changes={path: value}))
    with pytest.raises(SettingError, match=f"^{told}"):
        check_changes({path: value})
