"""Named implementations, passed to an engine instead of living in module globals."""

from collections.abc import Callable
from typing import Any

from workbench.errors import SettingError

KINDS = ("page_format", "codec", "tier", "order", "retention", "eviction", "index", "placement")


class Registry:
    """Maps (kind, name) to a factory; each engine holds its own."""

    def __init__(self) -> None:
        self._factories: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in KINDS}

    def register(self, kind: str, name: str, factory: Callable[..., Any]) -> None:
        """Add an implementation; a name is taken once."""
        if kind not in self._factories:
            raise SettingError(f"unknown kind {kind!r}: choose one of {', '.join(KINDS)}")
        if name in self._factories[kind]:
            raise SettingError(f"{kind} {name!r} is registered already: choose another name")
        self._factories[kind][name] = factory

    def create(self, kind: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Build the implementation called `name`."""
        try:
            factory = self._factories[kind][name]
        except KeyError:
            known = ", ".join(self.names(kind))
            raise SettingError(f"unknown {kind} {name!r}: choose one of {known}") from None
        return factory(*args, **kwargs)

    def names(self, kind: str) -> list[str]:
        """Names registered under a kind, in order of registration."""
        return list(self._factories[kind])
