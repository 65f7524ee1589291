"""Which settings of different sections do not go together, and what to choose instead."""

from workbench.errors import SettingError
from workbench.layer_plan import parse_plan, parse_ranks
from workbench.settings.cache import CacheSettings
from workbench.settings.formats import (
    GROUPED_FORMATS,
    KV_FORMATS,
    LOW_RANK_FORMATS,
)
from workbench.settings.retention import RetentionSettings
from workbench.settings.tiers import FLOAT_CODECS, TierSettings


def check_combinations(
    cache: CacheSettings, tiers: TierSettings, retention: RetentionSettings
) -> None:
    """Raise SettingError naming two settings that exclude each other, and the remedy."""
    if "pyramid" in retention.split:
        told = f"retention.split = {retention.split} gives layers budgets"
        _check_grouping(cache, ("layer", "head"), told)
    if retention.policy == "snapkv":
        _check_window(retention)
    if retention.merge != "off":
        _check_merging(cache, retention)
    if retention.sparse != "off" and retention.positions == "compact":
        raise SettingError(
            f"retention.sparse = {retention.sparse} chooses pages by bounds of keys at "
            "fixed positions, but retention.positions = compact moves them: choose original"
        )
    if parse_plan(cache.layer_plan, KV_FORMATS):
        _check_grouping(cache, ("layer", "head"), "cache.layer_plan gives layers formats")
    for name in sorted(cache.used_formats & set(GROUPED_FORMATS)):
        _check_whole_pages(cache, retention, f"format {name} writes a page only when it is full")
    if parse_ranks(cache.rank_plan):
        _check_grouping(cache, ("layer", "head"), "cache.rank_plan gives layers ranks")
    if cache.rank_heads > 1 and cache.grouping == "head":
        raise SettingError(
            f"cache.rank_heads = {cache.rank_heads} joins the KV heads of a block, but "
            "cache.grouping = head gives each its own: choose layer, halves or model"
        )
    _check_page_options(cache, retention)
    if cache.own_basis:
        _check_own_basis(cache, retention)
    if cache.values == "dram":
        _check_values_below(cache, tiers, retention)
    _check_codec(cache, tiers)
    if "ada" in retention.split:
        told = f"retention.split = {retention.split} gives heads budgets"
        _check_grouping(cache, ("head",), told)


def _check_grouping(cache: CacheSettings, needed: tuple[str, ...], told: str) -> None:
    """Raise SettingError where the grouping keeps together what is to differ."""
    if cache.grouping not in needed:
        raise SettingError(
            f"{told} of their own, but cache.grouping = {cache.grouping} keeps them together: "
            f"choose {' or '.join(needed)}"
        )


def _check_window(retention: RetentionSettings) -> None:
    """Raise SettingError where what always stays leaves a window nothing to choose."""
    if retention.sink_tokens + retention.window_tokens > retention.budget_tokens:
        raise SettingError(
            f"retention.window_tokens = {retention.window_tokens} and retention.sink_tokens = "
            f"{retention.sink_tokens} always stay and are more than retention.budget_tokens = "
            f"{retention.budget_tokens}, so snapkv would have nothing to choose: choose a shorter "
            "window or a larger budget"
        )


def _check_merging(cache: CacheSettings, retention: RetentionSettings) -> None:
    """Raise SettingError where tokens cannot be merged one by one."""
    for path, value, needed in (
        ("retention.level", retention.level, "token"),
        ("cache.grouping", cache.grouping, "head"),
    ):
        if value != needed:
            raise SettingError(
                f"retention.merge = {retention.merge} merges single tokens of single heads, "
                f"but {path} = {value}: choose {needed}"
            )


def _check_codec(cache: CacheSettings, tiers: TierSettings) -> None:
    """Raise SettingError where a codec of numbers would get other codes."""
    coded = sorted(cache.used_formats - {"bf16", "fp32"})
    if tiers.disk_codec in FLOAT_CODECS and coded:
        raise SettingError(
            f"tiers.disk_codec = {tiers.disk_codec} takes pages of bf16 and fp32 only, but "
            f"the cache has {coded[0]} (cache.k_format, cache.v_format, cache.layer_plan): choose "
            "planes+zstd, or another format"
        )


def _check_values_below(
    cache: CacheSettings, tiers: TierSettings, retention: RetentionSettings
) -> None:
    """Raise SettingError where V cannot lie in DRAM, or would not be read as the settings say."""
    told = "cache.values = dram moves the V of full pages"
    _check_whole_pages(cache, retention, told)
    if not tiers.dram_mib:
        raise SettingError(f"{told}, but tiers.dram_mib = 0: give DRAM room, or choose hbm")
    if tiers.dram_throttle_mb_s:
        raise SettingError(
            f"{told}, which attention reads at once, but tiers.dram_throttle_mb_s = "
            f"{tiers.dram_throttle_mb_s:g} makes loads wait: choose 0"
        )


def _check_own_basis(cache: CacheSettings, retention: RetentionSettings) -> None:
    """Raise SettingError where a request cannot have a basis of its own."""
    told = "cache.basis = sequence makes a basis of a request's keys"
    for name in sorted(cache.value_formats & set(LOW_RANK_FORMATS)):
        raise SettingError(
            f"{told}, and V has none, so cache.v_format cannot be {name}: choose another, or "
            "cache.basis = calibrated"
        )
    _check_whole_pages(cache, retention, f"{told} once the prompt is there")


def _check_page_options(cache: CacheSettings, retention: RetentionSettings) -> None:
    """Raise SettingError where a residual, outliers, sinks or a KIVI group do not fit the pages."""
    if cache.residual_tokens:
        told = f"cache.residual_tokens = {cache.residual_tokens} lets full pages wait as they are"
        _check_whole_pages(cache, retention, told)
    if cache.outlier_pages:
        told = f"cache.outlier_pages = {cache.outlier_pages} lets full pages stay as they are"
        _check_whole_pages(cache, retention, told)
    if cache.num_sinks:
        told = f"cache.sink_tokens = {cache.sink_tokens} leaves the first pages as they are"
        told += " with KVQuant (0: none)" if cache.sink_tokens < 0 else ""
        _check_whole_pages(cache, retention, told)
    if cache.key_formats & set(GROUPED_FORMATS) and cache.kivi_group > cache.block_size:
        raise SettingError(
            f"cache.kivi_group = {cache.kivi_group} tokens does not divide cache.block_size = "
            f"{cache.block_size}: choose a group of at most a page"
        )


def _check_whole_pages(cache: CacheSettings, retention: RetentionSettings, told: str) -> None:
    """Raise SettingError for what cannot go with pages that are written whole."""
    for path, value, refused, instead in (
        ("retention.level", retention.level, "token", "page"),
        ("cache.allocation", cache.allocation, "contiguous", "paged"),
        ("cache.mode", cache.mode, "off", "on"),
    ):
        if value == refused:
            raise SettingError(f"{told}, so {path} cannot be {value}: choose {instead}")
