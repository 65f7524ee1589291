"""A file of settings to sweep, and the sweep that is run when there is none."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.config import all_settings
from workbench.errors import SettingError
from workbench.quality.engines import Changes, check_changes
from workbench.quality.results import Setting, figure_name

EXAMPLE = '[{"name": "int8", "cache.k_format": "int8", "cache.v_format": "int8"}]'
K_FORMAT, V_FORMAT = "cache.k_format", "cache.v_format"
GROUP_TOKENS = 32  # a format that groups tokens wants a page that is one group


def read_settings(path: Path) -> list[Setting]:
    """Named settings from JSON (a list of objects) or TOML (tables `[[setting]]`).

    Each object has a `name` and setting paths; SettingError names the entry that cannot be, before
    anything runs.
    """
    try:
        text = path.read_bytes().decode()
        loaded: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}): name a JSON or TOML file of settings"
        ) from error
    except ValueError as error:
        raise SettingError(f"{path.name} is no JSON or TOML ({error}): write {EXAMPLE}") from error
    if isinstance(loaded, dict):
        loaded = loaded.get("setting")
    if not isinstance(loaded, list) or not loaded:
        raise SettingError(f"{path.name} holds no list of settings: write {EXAMPLE}")
    return check_settings([_setting(path.name, at, entry) for at, entry in enumerate(loaded)])


def _setting(file: str, at: int, entry: Any) -> Setting:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise SettingError(f"{file}, setting {at + 1} has no name: write {EXAMPLE}")
    changes = {key: value for key, value in entry.items() if key != "name"}
    return Setting(name=entry["name"], changes=_flat(changes))


def _flat(changes: dict[str, Any]) -> Changes:
    """TOML reads `cache.k_format = ...` as a table in a table; both spellings are one setting."""
    flat: Changes = {}
    for key, value in changes.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def check_settings(settings: Sequence[Setting]) -> list[Setting]:
    """The same settings; SettingError names one that is unknown, out of range or there twice."""
    names: set[str] = set()
    for setting in settings:
        if figure_name(setting.name) in names:
            raise SettingError(f"setting {setting.name!r} is there twice: give it another name")
        names.add(figure_name(setting.name))
        try:
            check_changes(setting.changes)
        except SettingError as error:
            raise SettingError(f"setting {setting.name!r}: {error}") from error
    return list(settings)


def format_changes(k_format: str, v_format: str) -> Changes:
    """Changes that store K and V in these formats, with the page size that they are made for."""
    changes: Changes = {K_FORMAT: k_format, V_FORMAT: v_format}
    if any(name.startswith("kivi") for name in (k_format, v_format)):
        changes["cache.block_size"] = GROUP_TOKENS
    return changes


def default_sweep() -> list[Setting]:
    """Every page format there is for K and V, and K4/V2 where KIVI is there."""
    names = all_settings()[K_FORMAT].metadata["choices"]
    sweep = [Setting(name=name, changes=format_changes(name, name)) for name in names]
    if {"kivi4", "kivi2"} <= set(names):
        sweep.append(Setting(name="k4v2", changes=format_changes("kivi4", "kivi2")))
    return sweep
