"""How a setting is declared: default, range, dimension, what changing it costs; and its check."""

import dataclasses
from dataclasses import field
from typing import Any, ClassVar, Literal

from workbench.errors import SettingError

Change = Literal["hot", "recode", "rebuild", "restart"]
Dimension = Literal["T", "S", "X", "-"]


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
    own: str = "",
) -> Any:
    """A dataclass field with its range and the cost of changing it.

    `change`: `hot` takes effect at the next step; `recode` re-encodes resident pages; `rebuild`
    lays the cache out anew and recomputes running requests; `restart` loads weights again.
    `dim`: temporal T, spatial S, structural X, or none. `main`: shown without opening "more".
    `own`: a kind of the engine's registry, whose names are allowed besides `choices`.
    """
    meta = dict(
        change=change, dim=dim, choices=choices, low=low, high=high, unit=unit, main=main, own=own
    )
    return field(default=default, metadata=meta)


class Section:
    """Validates each field of a settings dataclass against its metadata."""

    section: ClassVar[str]

    def __init_subclass__(cls, section: str) -> None:
        cls.section = section

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            check_value(f"{self.section}.{item.name}", item, getattr(self, item.name))


def check_value(path: str, item: "dataclasses.Field[Any]", value: Any) -> None:
    """Raise SettingError naming the setting, the value and the allowed range."""
    meta = item.metadata
    if meta["choices"] and not meta["own"] and value not in meta["choices"]:
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
