"""Every setting of the engine: default, range, dimension, and what changing it costs.

A setting is addressed by its path, such as `cache.k_format`. The dashboard builds its knobs, the
URL its difference and `Engine.apply` its plan from the metadata kept here, and from nowhere else.
"""

import dataclasses
import functools
import itertools
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.errors import SettingError
from workbench.layer_plan import parse_plan, parse_ranks

Change = Literal["hot", "recode", "rebuild", "restart"]
Dimension = Literal["T", "S", "X", "-"]

# by family; what each one is: kernels/kvkernels/formats
KV_FORMATS = (
    "bf16", "fp32", "fp8_e4m3", "fp8_e4m3_head", "fp8_e4m3_token", "fp8_e5m2", "int8", "int4",
    "int4_rotated", "int3", "int2", "nvfp4", "turbo4", "turbo3", "kivi4", "kivi3", "kivi2",
    "kvquant4", "kvquant3", "kvquant2", "lowrank", "lowrank_int4",
)  # fmt: skip
CALIBRATED_FORMATS = ("kvquant4", "kvquant3", "kvquant2", "lowrank", "lowrank_int4")
PRE_ROPE_FORMATS = CALIBRATED_FORMATS  # their keys are stored as projected, and rotated at read
LOW_RANK_FORMATS = ("lowrank", "lowrank_int4")
GROUPED_FORMATS = ("kivi4", "kivi3", "kivi2")  # numbers of several tokens share their scale
KIVI_GROUPS = (0, 8, 16, 32, 64)  # tokens of K, channels of V; 0: as many of 32 as divide the page
WEIGHT_FORMATS = ("auto", "as_stored", "int8", "bf16", "fp32")
BLOCK_SIZES = (4, 8, 16, 32, 64)
RETENTION_POLICIES = (
    "none", "sink+window", "attention-mass", "h2o", "snapkv", "tova", "key-norm",
    "expected-attention", "random",
)  # fmt: skip
SPARSE_READS = ("off", "quest")  # whether a token reads all pages, or those chosen by bounds
MERGES = ("off", "nearest", "cam")  # what a dropped token leaves to those that stay
GQA_REDUCTIONS = ("mean", "max", "sum")  # of the query heads that share a KV head
EVICTION_ORDERS = ("lru", "fifo", "lfu", "slru", "arc", "cost-aware", "predictive")
PREFIX_INDEXES = ("hash", "radix")  # how a text's cached prefix is found
PROMPT_CACHING = ("automatic", "explicit")  # whatever is cached may be hit, or what was marked
BUDGET_SPLITS = ("uniform", "pyramid", "ada", "ada+pyramid")  # among layers, among heads, both
POSITIONS = ("original", "compact")  # in the text, or among the stored tokens
DISK_CODECS = ("none", "planes+zstd", "cachegen")
FLOAT_CODECS = ("cachegen",)  # of numbers, not of bytes: pages have to hold them as they are
GROUPINGS = ("model", "halves", "layer", "head")  # which layers and heads share a page


def setting(
    default: Any,
    *,
    change: Change,
    dim: Dimension = "-",
    choices: tuple[Any, ...] = (),
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    main: bool = False,
) -> Any:
    """A dataclass field with its range and the cost of changing it.

    `change`: `hot` takes effect at the next step; `recode` re-encodes resident pages; `rebuild`
    lays the cache out anew and recomputes running requests; `restart` loads weights again.
    `dim`: temporal T, spatial S, structural X, or none. `main`: shown without opening "more".
    """
    meta = dict(change=change, dim=dim, choices=choices, low=low, high=high, unit=unit, main=main)
    return field(default=default, metadata=meta)


class _Section:
    """Validates each field of a settings dataclass against its metadata."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            check_value(f"{_section_name(type(self))}.{item.name}", item, getattr(self, item.name))


def check_value(path: str, item: "dataclasses.Field[Any]", value: Any) -> None:
    """Raise SettingError naming the setting, the value and the allowed range."""
    meta = item.metadata
    if meta["choices"] and value not in meta["choices"]:
        allowed = ", ".join(str(choice) for choice in meta["choices"])
        raise SettingError(f"{path} = {value!r} is not allowed: choose one of {allowed}")
    if isinstance(item.default, bool) != isinstance(value, bool):
        raise SettingError(f"{path} = {value!r} is not allowed: give true or false")
    if isinstance(item.default, (int, float)) and not isinstance(item.default, bool):
        integral = isinstance(item.default, int)
        if not isinstance(value, (int, float)) or (integral and value != int(value)):
            kind = "a whole number" if integral else "a number"
            raise SettingError(f"{path} = {value!r} is not allowed: give {kind}")
        if not (meta["low"] is None or value >= meta["low"]) or not (
            meta["high"] is None or value <= meta["high"]
        ):
            unit = f" {meta['unit']}" if meta["unit"] else ""
            raise SettingError(
                f"{path} = {value} is out of range: {meta['low']} to {meta['high']}{unit}"
            )
    if isinstance(item.default, str) and not isinstance(value, str):
        raise SettingError(f"{path} = {value!r} is not allowed: give text")


@dataclass(frozen=True)
class ModelSettings(_Section):
    """Which weights run, and in which format."""

    path: str = setting("", change="restart")
    weight_format: str = setting("bf16", change="restart", choices=WEIGHT_FORMATS)
    max_model_len: int = setting(2048, change="rebuild", low=16, high=131072, unit="tokens")
    num_threads: int = setting(0, change="hot", low=0, high=256, unit="threads")


@dataclass(frozen=True)
class CacheSettings(_Section):
    """Bytes, pages and formats of the paged KV cache."""

    hbm_budget_mib: float = setting(
        64.0, change="rebuild", dim="S", low=0.0625, high=65536, unit="MiB", main=True
    )
    block_size: int = setting(16, change="rebuild", dim="X", choices=BLOCK_SIZES, unit="tokens")
    grouping: str = setting("model", change="rebuild", dim="X", choices=GROUPINGS)
    k_format: str = setting("bf16", change="recode", dim="X", choices=KV_FORMATS, main=True)
    v_format: str = setting("bf16", change="recode", dim="X", choices=KV_FORMATS, main=True)
    layer_plan: str = setting("", change="recode", dim="X")
    kivi_group: int = setting(0, change="recode", dim="X", choices=KIVI_GROUPS)
    residual_tokens: int = setting(
        0, change="recode", dim="X", low=0, high=4096, unit="tokens per request"
    )
    mode: str = setting("on", change="rebuild", dim="X", choices=("on", "off"))
    allocation: str = setting("paged", change="rebuild", dim="X", choices=("paged", "contiguous"))
    prefix_caching: bool = setting(True, change="hot", dim="X")
    partial_hits: bool = setting(False, change="hot", dim="X")
    index: str = setting("hash", change="hot", dim="X", choices=PREFIX_INDEXES)
    rank: int = setting(0, change="recode", dim="X", low=0, high=1024, unit="numbers (0 = half)")
    rank_plan: str = setting("", change="recode", dim="X")
    calibration: str = setting("needed", change="rebuild", dim="X")
    prompt_caching: str = setting("automatic", change="hot", dim="X", choices=PROMPT_CACHING)
    min_cacheable_tokens: int = setting(
        64, change="hot", dim="X", low=1, high=131072, unit="tokens"
    )
    eviction: str = setting("lru", change="hot", dim="X", choices=EVICTION_ORDERS)
    reuse: str = setting("recoded", change="hot", dim="X", choices=("recoded", "exact"))


@dataclass(frozen=True)
class SchedulingSettings(_Section):
    """What runs in the next step (vLLM V1's rule: one token budget, no phases)."""

    order: str = setting(
        "fcfs",
        change="hot",
        dim="T",
        choices=("fcfs", "priority", "longest-prefix-first"),
        main=True,
    )
    token_budget: int = setting(
        256, change="hot", dim="T", low=1, high=16384, unit="tokens per step", main=True
    )
    max_num_seqs: int = setting(16, change="hot", dim="T", low=1, high=512, unit="requests")
    chunk_tokens: int = setting(
        128,
        change="hot",
        dim="T",
        low=1,
        high=16384,
        unit="prefill tokens per request and step",
        main=True,
    )
    preemption: str = setting(
        "recompute", change="hot", dim="T", choices=("recompute", "swap"), main=True
    )
    watermark: float = setting(0.01, change="hot", dim="T", low=0.0, high=0.5, unit="share")
    admit_whole_prompt: bool = setting(True, change="hot", dim="T")


@dataclass(frozen=True)
class TierSettings(_Section):
    """DRAM and disk below HBM. A size of 0 switches a tier off."""

    dram_mib: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=65536, unit="MiB", main=True
    )
    disk_mib: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=1048576, unit="MiB", main=True
    )
    disk_path: str = setting("", change="hot", dim="S")
    policy: str = setting("lru", change="hot", dim="S", choices=("lru",), main=True)
    gate: bool = setting(True, change="hot", dim="S")
    disk_codec: str = setting("none", change="hot", dim="S", choices=DISK_CODECS)
    dram_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )
    disk_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )


@dataclass(frozen=True)
class RetentionSettings(_Section):
    """Which tokens of a running request stay."""

    policy: str = setting("none", change="hot", dim="X", choices=RETENTION_POLICIES, main=True)
    budget_tokens: int = setting(
        256, change="hot", dim="X", low=16, high=131072, unit="tokens per request", main=True
    )
    sink_tokens: int = setting(16, change="hot", dim="X", low=0, high=4096, unit="tokens")
    window_tokens: int = setting(64, change="hot", dim="X", low=1, high=131072, unit="tokens")
    level: str = setting("page", change="hot", dim="X", choices=("page", "token"))
    when: str = setting("both", change="hot", dim="X", choices=("both", "prefill", "decode"))
    split: str = setting("uniform", change="hot", dim="X", choices=BUDGET_SPLITS)
    positions: str = setting("original", change="rebuild", dim="X", choices=POSITIONS)
    gqa_reduce: str = setting("mean", change="hot", dim="X", choices=GQA_REDUCTIONS)
    merge: str = setting("off", change="hot", dim="X", choices=MERGES)
    merge_cosine: float = setting(0.6, change="hot", dim="X", low=-1.0, high=1.0)
    sparse: str = setting("off", change="hot", dim="X", choices=SPARSE_READS)
    sparse_pages: int = setting(
        4, change="hot", dim="X", low=1, high=65536, unit="pages per token and layer"
    )
    sparse_share: float = setting(
        0.125, change="hot", dim="X", low=0.0, high=1.0, unit="share of the pages"
    )
    sparse_dense_layers: int = setting(2, change="hot", dim="X", low=0, high=1024, unit="layers")


@dataclass(frozen=True)
class EngineConfig:
    """All settings of one engine; change it with `replace_settings`, never in place."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    tiers: TierSettings = field(default_factory=TierSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)

    def __post_init__(self) -> None:
        split, grouping = self.retention.split, self.cache.grouping
        if "pyramid" in split and grouping not in ("layer", "head"):
            raise SettingError(
                f"retention.split = {split} gives layers budgets of their own, but cache.grouping "
                f"= {grouping} keeps them together: choose layer or head"
            )
        if self.retention.merge != "off":
            _check_merging(self)
        if self.retention.sparse != "off" and self.retention.positions == "compact":
            raise SettingError(
                f"retention.sparse = {self.retention.sparse} chooses pages by bounds of keys at "
                "fixed positions, but retention.positions = compact moves them: choose original"
            )
        plan = parse_plan(self.cache.layer_plan, KV_FORMATS)
        if plan and grouping not in ("layer", "head"):
            raise SettingError(
                f"cache.layer_plan gives layers formats of their own, but cache.grouping = "
                f"{grouping} keeps them together: choose layer or head"
            )
        for name in sorted(used_formats(self) & set(GROUPED_FORMATS)):
            _check_grouped(self, f"format {name} writes a page only when it is full")
        if parse_ranks(self.cache.rank_plan) and grouping not in ("layer", "head"):
            raise SettingError(
                f"cache.rank_plan gives layers ranks of their own, but cache.grouping = {grouping} "
                "keeps them together: choose layer or head"
            )
        _check_page_options(self)
        _check_codec(self)
        if "ada" in split and grouping != "head":
            raise SettingError(
                f"retention.split = {split} gives heads budgets of their own, but cache.grouping "
                f"= {grouping} keeps them together: choose head"
            )


def used_formats(config: EngineConfig) -> set[str]:
    """Every format that pages of this config can have, of K and of V."""
    cache = config.cache
    plan = parse_plan(cache.layer_plan, KV_FORMATS)
    return {cache.k_format, cache.v_format, *itertools.chain(*plan.values())}


def key_formats(config: EngineConfig) -> set[str]:
    """Every format that K can have in pages of this config."""
    plan = parse_plan(config.cache.layer_plan, KV_FORMATS)
    return {config.cache.k_format, *(formats[0] for formats in plan.values())}


def _check_merging(config: EngineConfig) -> None:
    """Raise SettingError where tokens cannot be merged one by one."""
    for path, value, needed in (
        ("retention.level", config.retention.level, "token"),
        ("cache.grouping", config.cache.grouping, "head"),
    ):
        if value != needed:
            raise SettingError(
                f"retention.merge = {config.retention.merge} merges single tokens of single heads, "
                f"but {path} = {value}: choose {needed}"
            )
    before = sorted(key_formats(config) & set(PRE_ROPE_FORMATS))
    if before or config.retention.positions == "compact":
        cause = f"format {before[0]}" if before else "retention.positions = compact"
        raise SettingError(
            f"retention.merge = {config.retention.merge} compares keys as attention reads them, "
            f"but {cause} stores them before RoPE: choose merge off, or another"
        )


def _check_codec(config: EngineConfig) -> None:
    """Raise SettingError where a codec of numbers would get other codes."""
    coded = sorted(used_formats(config) - {"bf16", "fp32"})
    if config.tiers.disk_codec in FLOAT_CODECS and coded:
        raise SettingError(
            f"tiers.disk_codec = {config.tiers.disk_codec} takes pages of bf16 and fp32 only, but "
            f"the cache has {coded[0]} (cache.k_format, cache.v_format, cache.layer_plan): choose "
            "planes+zstd, or another format"
        )


def _check_page_options(config: EngineConfig) -> None:
    """Raise SettingError where a residual or a KIVI group does not go with the pages."""
    cache, plan = config.cache, parse_plan(config.cache.layer_plan, KV_FORMATS)
    if cache.residual_tokens:
        told = f"cache.residual_tokens = {cache.residual_tokens} lets full pages wait as they are"
        _check_grouped(config, told)
    keys = {cache.k_format, *(formats[0] for formats in plan.values())}
    if keys & set(GROUPED_FORMATS) and cache.kivi_group > cache.block_size:
        raise SettingError(
            f"cache.kivi_group = {cache.kivi_group} tokens does not divide cache.block_size = "
            f"{cache.block_size}: choose a group of at most a page"
        )


def _check_grouped(config: EngineConfig, reason: str) -> None:
    """Raise SettingError for what cannot go with pages that are written whole."""
    for path, value, instead in (
        ("retention.level", "token", "page"),
        ("cache.allocation", "contiguous", "paged"),
        ("cache.mode", "off", "on"),
    ):
        section, name = path.split(".")
        if getattr(getattr(config, section), name) == value:
            raise SettingError(f"{reason}, so {path} cannot be {value}: choose {instead}")


SECTIONS: dict[str, type] = {
    "model": ModelSettings,
    "cache": CacheSettings,
    "scheduling": SchedulingSettings,
    "tiers": TierSettings,
    "retention": RetentionSettings,
}


def _section_name(section: type) -> str:
    return next(name for name, kind in SECTIONS.items() if kind is section)


@functools.cache
def all_settings() -> "dict[str, dataclasses.Field[Any]]":
    """Every setting's dataclass field by its path, in display order."""
    return {
        f"{name}.{item.name}": item
        for name, section in SECTIONS.items()
        for item in dataclasses.fields(section)
    }


def get_setting(config: EngineConfig, path: str) -> Any:
    """Value of one setting by its path."""
    _find(path)
    section, name = path.split(".")
    return getattr(getattr(config, section), name)


def replace_settings(config: EngineConfig, changes: dict[str, Any]) -> EngineConfig:
    """A new config with `changes` (path to value) applied and validated together."""
    by_section: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        default = _find(path).default
        if isinstance(value, str) and not isinstance(default, str):
            value = _parse(path, value, default)
        elif isinstance(default, int) and isinstance(value, float) and value == int(value):
            value = int(value)
        elif isinstance(default, float) and type(value) is int:
            value = float(value)
        section, name = path.split(".")
        by_section.setdefault(section, {})[name] = value
    sections = {
        name: dataclasses.replace(getattr(config, name), **values)
        for name, values in by_section.items()
    }
    return dataclasses.replace(config, **sections)


def difference(config: EngineConfig, base: EngineConfig) -> dict[str, Any]:
    """Settings of `config` that differ from `base`, by path."""
    return {
        path: get_setting(config, path)
        for path in all_settings()
        if get_setting(config, path) != get_setting(base, path)
    }


def _find(path: str) -> "dataclasses.Field[Any]":
    settings = all_settings()
    if path not in settings:
        close = [name for name in settings if name.endswith("." + path.split(".")[-1])]
        hint = f"did you mean {close[0]}?" if close else "`workbench settings` lists them all"
        raise SettingError(f"unknown setting {path!r}: {hint}")
    return settings[path]


def _parse(path: str, text: str, default: Any) -> Any:
    """Read a setting from a URL or the command line."""
    if isinstance(default, bool):
        if text.lower() in ("true", "1", "on"):
            return True
        if text.lower() in ("false", "0", "off"):
            return False
        raise SettingError(f"{path} = {text!r} is not allowed: give true or false")
    try:
        return type(default)(float(text)) if isinstance(default, int) else float(text)
    except (ValueError, OverflowError):
        raise SettingError(f"{path} = {text!r} is not allowed: give a number") from None
