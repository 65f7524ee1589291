"""Settings in the address bar: the difference from the fixed defaults, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from workbench.config import EngineConfig, all_settings, difference, get_setting, replace_settings
from workbench.errors import SettingError

# Where files lie and how many cores there are is a matter of the machine, not of a link.
LOCAL_SETTINGS = (
    "model.path", "model.num_threads", "tiers.disk_path", "tiers.disk_keep",
    "tiers.shared_address", "tiers.object_url",
)  # fmt: skip
CALIBRATION = "cache.calibration"
OWN_CALIBRATIONS = ("needed", "all")  # the model's own file, wherever a machine keeps it
OTHER_PARAMS = ("lang",)


@dataclass(frozen=True)
class LinkContent:
    """What an address asks for: the settings it names, and one sentence if some are unknown."""

    changes: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def is_local(path: str, value: Any) -> bool:
    """Whether a value means something on one machine only."""
    return path in LOCAL_SETTINGS or (path == CALIBRATION and value not in OWN_CALIBRATIONS)


def link_params(config: EngineConfig) -> dict[str, str]:
    """Query parameters of `config`: what differs from the defaults and is not local."""
    changes = difference(config, EngineConfig())
    return {path: _to_text(value) for path, value in changes.items() if not is_local(path, value)}


def read_link(params: Mapping[str, str]) -> LinkContent:
    """Settings in a query; a bad one is left out and named in `error`, the others stand."""
    local = [path for path, text in params.items() if is_local(path, text)]
    asked = {p: text for p, text in params.items() if p not in (*local, *OTHER_PARAMS)}
    error = f"{local[0]} belongs to a machine and is not taken from a link" if local else ""
    try:
        config, good = replace_settings(EngineConfig(), asked), list(asked)
    except SettingError:
        config, good, refusal = _one_by_one(asked)
        error = error or refusal
    return LinkContent({path: get_setting(config, path) for path in good}, error)


def _one_by_one(asked: dict[str, str]) -> tuple[EngineConfig, list[str], str]:
    """What of a query can stand together, its paths, and the first refusal of the rest.

    A setting may need another one, whichever comes first: what is refused is tried again.
    """
    config, good, waiting = EngineConfig(), list[str](), dict(asked)
    while True:
        error, before = "", len(good)
        for path, text in list(waiting.items()):
            try:
                config = replace_settings(config, {path: text})
            except SettingError as refusal:
                error = error or str(refusal)
                continue
            good.append(path)
            del waiting[path]
        if not waiting or len(good) == before:
            return config, good, error


def link_changes(content: LinkContent, config: EngineConfig) -> dict[str, Any]:
    """What applying a link would change: its settings, and defaults for what it does not name.

    A file that belongs to this machine stays.
    """
    wanted = {
        path: content.changes.get(path, get_setting(EngineConfig(), path))
        for path in all_settings()
        if path in content.changes or not is_local(path, get_setting(config, path))
    }
    return {path: value for path, value in wanted.items() if get_setting(config, path) != value}


def link_address(base: str, config: EngineConfig) -> str:
    """The whole address that shows `config`."""
    params = link_params(config)
    base = base.split("?")[0].split("#")[0]
    return f"{base}?{urlencode(params)}" if params else base


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    short = f"{value:g}" if isinstance(value, float) else ""  # of six digits at most
    return short if short and float(short) == value else str(value)
