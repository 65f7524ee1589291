"""Named implementations, passed to an engine instead of living in module globals."""

from collections.abc import Callable, Iterable
from typing import Any

from workbench.errors import SettingError

KINDS = ("page_format", "codec", "tier", "order", "retention", "eviction", "index", "placement")
Name = tuple[str, str]  # kind, and the name within it


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

    def without(self, names: Iterable[Name]) -> "Registry":
        """A copy that does not have these names."""
        gone, copy = set(names), Registry()
        for kind, factories in self._factories.items():
            kept = {name: each for name, each in factories.items() if (kind, name) not in gone}
            copy._factories[kind] = kept
        return copy

    def added_to(self, before: "Registry") -> list[Name]:
        """Names that this one has and an earlier one has not."""
        pairs = [(kind, name) for kind in KINDS for name in self.names(kind)]
        return [(kind, name) for kind, name in pairs if name not in before.names(kind)]

    def adopt(self, other: "Registry") -> None:
        """Have what another one has from now on."""
        self._factories = {kind: dict(each) for kind, each in other._factories.items()}
