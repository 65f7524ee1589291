"""All settings of one engine, each by its path, such as `cache.k_format`.

`workbench/settings/` declares them, a file a section. The dashboard builds its knobs, the URL its
difference and `Engine.apply` its plan from the metadata declared there, and from nowhere else.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import SettingError
from workbench.settings.cache import CacheSettings
from workbench.settings.combinations import check_combinations
from workbench.settings.model import ModelSettings
from workbench.settings.retention import RetentionSettings
from workbench.settings.scheduling import SchedulingSettings
from workbench.settings.tiers import TierSettings


@dataclass(frozen=True)
class EngineConfig:
    """All settings of one engine; change it with `replace_settings`, never in place."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    tiers: TierSettings = field(default_factory=TierSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)

    def __post_init__(self) -> None:
        check_combinations(self.cache, self.tiers, self.retention)


@functools.cache
def all_settings() -> "dict[str, dataclasses.Field[Any]]":
    """Every setting's dataclass field by its path, in display order."""
    return {
        f"{name}.{item.name}": item
        for name, section in vars(EngineConfig()).items()
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
