"""Which settings a sweep measures: formats, retention, sparse reads, the current one, a file's."""

import json
import tomllib
from dataclasses import dataclass
from typing import Any

from workbench.config import EngineConfig, all_settings, get_setting, replace_settings
from workbench.errors import SettingError
from workbench.quality.job_protocol import (
    MAX_SETTINGS,
    QUALITY_SETTINGS,
    check_setting,
    quality_changes,
)
from workbench.quality.results import Setting
from workbench.settings.formats import GROUPED_FORMATS

MAX_FILE_BYTES = 64 * 1024
MAX_NAME = 60
CURRENT = "current"
K_FORMAT, V_FORMAT = "cache.k_format", "cache.v_format"
SPARSE_PARTS = (8, 4)  # one of so many pages is read
GROUP_TOKENS = 32  # a format that groups tokens wants a page that is one group
EXAMPLE = '[{"name": "int8", "cache.k_format": "int8", "cache.v_format": "int8"}]'
# A family shares what its numbers mean, so that a plot can show it by one shape.
FAMILIES = {
    "full": ("bf16", "fp32"),
    "fp8": (
        "fp8_e4m3",
        "fp8_e4m3_head",
        "fp8_e4m3_token",
        "fp8_e5m2",
        "fp8_e5m2_head",
        "fp8_e5m2_token",
    ),
    "int": ("int8", "int4", "int3", "int2"),
    "rotated": ("int4_rotated", "turbo4", "turbo3"),
    "block": ("nvfp4",),
    "kivi": ("kivi4", "kivi3", "kivi2"),
    "kvquant": ("kvquant4", "kvquant3", "kvquant2"),
    "low_rank": ("lowrank", "lowrank_int4"),
}


def family_of(changes: dict[str, Any]) -> str:
    """A format's family, or retention, sparse, mixed or other."""
    default = EngineConfig()
    if changes.get("retention.policy", default.retention.policy) != "none":
        return "retention"
    if changes.get("retention.sparse", default.retention.sparse) != "off":
        return "sparse"
    if changes.get("cache.layer_plan"):
        return "mixed"
    found = {
        format_family(str(changes.get(path, get_setting(default, path))))
        for path in (K_FORMAT, V_FORMAT)
    }
    if len(found) == 1:
        return found.pop()
    return "mixed"


def format_family(name: str) -> str:
    """The family of one page format."""
    return next((family for family, names in FAMILIES.items() if name in names), "other")


def format_settings() -> list[Setting]:
    """Every page format for K and V alike, and K4/V2 where KIVI is there."""
    names = list(all_settings()[K_FORMAT].metadata["choices"])
    pairs = {name: (name, name) for name in names}
    if {"kivi4", "kivi2"} <= set(names):
        pairs["k4v2"] = ("kivi4", "kivi2")
    return [Setting(name=name, changes=_formats(*pair)) for name, pair in pairs.items()]


def _formats(k_format: str, v_format: str) -> dict[str, Any]:
    changes: dict[str, Any] = {K_FORMAT: k_format, V_FORMAT: v_format}
    if {k_format, v_format} & set(GROUPED_FORMATS):
        changes["cache.block_size"] = GROUP_TOKENS
    return changes


def retention_settings(context: int) -> list[Setting]:
    """Every retention policy, each keeping a quarter of the context, never below its limits."""
    default = EngineConfig().retention
    budget = max(context // 4, default.sink_tokens + default.window_tokens + 16)
    names = [name for name in all_settings()["retention.policy"].metadata["choices"]
             if name != "none"]  # fmt: skip
    return [
        Setting(
            name=f"{name} {budget}",
            changes={"retention.policy": name, "retention.budget_tokens": budget},
        )
        for name in names
    ]


def sparse_settings() -> list[Setting]:
    """Each kind of sparse reads with an eighth and a quarter of the pages, however few they are."""
    kinds = [name for name in all_settings()["retention.sparse"].metadata["choices"]
             if name != "off"]  # fmt: skip
    return [
        Setting(
            name=f"{kind} 1/{part}",
            changes={"retention.sparse": kind, "retention.sparse_share": 1 / part,
                     "retention.sparse_pages": 1},
        )
        for kind in kinds
        for part in SPARSE_PARTS
    ]  # fmt: skip


def current_setting(config: EngineConfig) -> Setting:
    """The running engine's own setting."""
    return Setting(name=CURRENT, changes=quality_changes(config))


def changes_to_apply(changes: dict[str, Any], config: EngineConfig) -> dict[str, Any]:
    """What turns a running engine's settings into those that were measured."""
    wanted = replace_settings(EngineConfig(), changes)
    paths = [*QUALITY_SETTINGS, *(path for path in changes if path not in QUALITY_SETTINGS)]
    return {
        path: get_setting(wanted, path)
        for path in paths
        if get_setting(config, path) != get_setting(wanted, path)
    }


@dataclass(frozen=True)
class FileSettings:
    """A file's good settings, and a sentence for each entry that cannot be measured."""

    settings: list[Setting]
    problems: list[str]


def read_file(name: str, data: bytes) -> FileSettings:
    """Settings of a JSON list or of TOML tables `[[setting]]`; at most MAX_SETTINGS of them.

    Raises SettingError when the file as a whole cannot be read.
    """
    if len(data) > MAX_FILE_BYTES:
        raise SettingError(f"{name} is larger than {MAX_FILE_BYTES // 1024} KiB: give less")
    try:
        text = data.decode()
        loaded: Any = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "deeper than this reader goes" if isinstance(error, RecursionError) else error
        raise SettingError(f"{name} is no JSON or TOML ({what}): write {EXAMPLE}") from error
    if isinstance(loaded, dict):
        loaded = loaded.get("setting")
    if not isinstance(loaded, list) or not loaded:
        raise SettingError(f"{name} holds no list of settings: write {EXAMPLE}")
    if len(loaded) > MAX_SETTINGS:
        raise SettingError(f"{name} has {len(loaded)} settings: give at most {MAX_SETTINGS}")
    return _check_all(loaded)


def _check_all(entries: list[Any]) -> FileSettings:
    good: list[Setting] = []
    problems: list[str] = []
    for number, entry in enumerate(entries, 1):
        try:
            setting = _read_entry(number, entry)
            if setting.name in {other.name for other in good}:
                raise SettingError(f"setting {setting.name!r} is there twice: give it another name")
            check_setting(setting)
        except SettingError as error:
            problems.append(str(error))
        else:
            good.append(setting)
    return FileSettings(good, problems)


def _read_entry(number: int, entry: Any) -> Setting:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME:
        raise SettingError(
            f"setting {number} has no name of at most {MAX_NAME} letters: write {EXAMPLE}"
        )
    if name.strip() == CURRENT:
        raise SettingError(f"setting {number} is named {CURRENT!r}, which is the engine's own: "
                           "give it another name")  # fmt: skip
    changes: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "name":
            continue
        # TOML reads `cache.k_format = ...` as a table in a table
        nested = {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) \
            else {key: value}  # fmt: skip
        changes |= nested
    return Setting(name=name.strip(), changes=changes)
