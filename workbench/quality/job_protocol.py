"""What a quality job and its starter say to each other: one JSON line each, without torch.

Plan in, one line on standard input; then lines out, one of `Line`.
"""

from typing import Any

import msgspec

from workbench.config import EngineConfig, all_settings, difference, replace_settings
from workbench.errors import SettingError
from workbench.lab.job_lines import DoneLine, ErrorLine
from workbench.quality.plan import QualityPlan
from workbench.quality.results import QualityReport, Setting
from workbench.settings.tiers import FLOAT_CODECS

MAX_SETTINGS = 64
MAX_PLAN_BYTES = 2**20
# What the lab decides itself, the same for every setting; see `engines.OWN`.
LAB_SETTINGS = (
    "cache.prefix_caching", "scheduling.max_num_seqs", "scheduling.token_budget",
    "scheduling.chunk_tokens",
)  # fmt: skip
# What changes the numbers that attention reads; all others change time and place alone.
QUALITY_SETTINGS = (
    "cache.block_size", "cache.grouping", "cache.k_format", "cache.v_format", "cache.layer_plan",
    "cache.kivi_group", "cache.residual_tokens", "cache.sink_tokens", "cache.outlier_pages",
    "cache.rank", "cache.rank_heads", "cache.rank_plan", "cache.basis", "cache.calibration",
    *(path for path in all_settings() if path.startswith("retention.")),
)  # fmt: skip

# What changes them as well, on the way of a prefix through the tiers, which forced text does not
# go; and the benches that measure it.
TIER_SETTINGS = {"tiers.disk_codec": "codecs", "tiers.retrieval": "tiers"}


class JobPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one job measures. `time_limit_s` 0 = none; `random_layers` > 0 = a random model.

    `probes`: also where the damage lies, layer by layer, on the plan's first window.
    """

    settings: list[Setting]
    plan: QualityPlan
    model_path: str = ""
    probes: bool = False
    time_limit_s: float = 0.0
    num_threads: int = 1
    random_layers: int = 0


class ModelLine(msgspec.Struct, frozen=True, kw_only=True, tag="model"):
    """The model that runs, once it is loaded."""

    name: str
    weight_format: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class ProgressLine(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Share done, 0 to 1, and what runs now; the page has the words for it.

    `kind`: window, needle, probe, loading or done; `number` of a window or needle, from 1;
    `setting`: its name, empty for the full cache that all are compared with.
    """

    share: float
    kind: str
    number: int = 0
    setting: str = ""


class ReportLine(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """A setting's report over the windows it has done; a later one replaces it."""

    report: QualityReport


class ProbesLine(msgspec.Struct, frozen=True, kw_only=True, tag="probes"):
    """As `probes.Probes`: [layer][query head], [layer][KV head], [layer]."""

    name: str
    num_positions: int
    output_error: list[list[float]]
    kept_mass: list[list[float]]
    k_snr_db: list[float]
    v_snr_db: list[float]


Line = ModelLine | ProgressLine | ReportLine | ProbesLine | ErrorLine | DoneLine
_decoder = msgspec.json.Decoder(Line)


def decode_line(data: bytes) -> Line:
    """A job's line; raises msgspec.DecodeError for anything else."""
    return _decoder.decode(data)


def decode_plan(data: bytes) -> JobPlan:
    """A plan; SettingError says in one sentence what is wrong with it."""
    if len(data) > MAX_PLAN_BYTES:
        raise SettingError(f"the plan is larger than {MAX_PLAN_BYTES // 1024} KiB: give less")
    try:
        plan = msgspec.json.decode(data, type=JobPlan)
    except SettingError:
        raise
    except msgspec.ValidationError as error:
        raise SettingError(f"the plan is not understood: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"the plan is no JSON ({error}): give one line of JSON") from error
    if not 1 <= len(plan.settings) <= MAX_SETTINGS:
        raise SettingError(f"the plan has {len(plan.settings)} settings: give 1 to {MAX_SETTINGS}")
    return plan


def quality_changes(config: EngineConfig) -> dict[str, Any]:
    """What of a running engine's settings a job measures, as changes to the defaults."""
    changes = difference(config, EngineConfig())
    return {path: value for path, value in changes.items() if path in QUALITY_SETTINGS}


def not_measured(config: EngineConfig) -> dict[str, Any]:
    """Settings that are on and change what attention reads, but no job measures, by path."""
    tiers = config.tiers
    found: dict[str, Any] = {}
    if tiers.disk_mib and tiers.disk_codec in FLOAT_CODECS:
        found["tiers.disk_codec"] = tiers.disk_codec
    if tiers.any_on and tiers.retrieval != "all" and tiers.retrieval_share < 1:
        found["tiers.retrieval"] = tiers.retrieval
    return found


def refuse_tier_setting(path: str) -> None:
    """Raise SettingError for a setting that forced text would show as exact although it is not."""
    if path in TIER_SETTINGS:
        raise SettingError(
            f"{path} acts on prefixes that come back from a tier, which forced text does not: "
            f"leave it out, and run workbench bench {TIER_SETTINGS[path]}"
        )


def check_setting(setting: Setting) -> None:
    """Raise SettingError for a setting that no job could measure, before one is started."""
    try:
        replace_settings(EngineConfig(), setting.changes)
    except SettingError as error:
        raise SettingError(f"setting {setting.name!r}: {error}") from error
    for path in setting.changes:
        try:
            refuse_tier_setting(path)
        except SettingError as error:
            raise SettingError(f"setting {setting.name!r}: {error}") from error
        if path in LAB_SETTINGS:
            raise SettingError(
                f"setting {setting.name!r}: {path} is the quality lab's own (the same for every "
                "setting): leave it out"
            )
        if all_settings()[path].metadata["change"] == "restart":
            raise SettingError(
                f"setting {setting.name!r}: {path} changes the weights, and a cache setting is "
                "judged on equal weights: leave it out"
            )
