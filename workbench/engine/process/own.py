"""Policy files of the user's own that this process has run, and the registry they are part of."""

from typing import TYPE_CHECKING

from workbench.errors import SettingError
from workbench.own_policies import run_policy
from workbench.registry import Name, Registry

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


class OwnPolicies:
    """Texts by file name, each run once; the registry is made with the first engine."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._waiting = dict(texts)
        self._names: dict[str, list[Name]] = {}  # what each file has registered
        self._registry: Registry | None = None

    def registry(self) -> Registry:
        """What comes with the workbench and what the files have added; SettingError from a file."""
        if self._registry is None:
            from workbench.engine.builtin import builtin_registry  # imports torch

            self._registry = builtin_registry()
        while self._waiting:
            name = next(iter(self._waiting))
            self._run(self._registry, name, self._waiting.pop(name))
        return self._registry

    def load(self, engine: "Engine", name: str, text: str) -> list[Name]:
        """Run one more file, or one of them anew; what is in use of it takes effect at once.

        SettingError, and nothing changed, where it fails or lacks what is in use.
        """
        from workbench.engine.placing import renew_placement

        before, names = engine.registry.without([]), self._names.get(name, [])
        added = self._run(engine.registry, name, text)
        try:
            renew_placement(engine, {*added, *names})
        except SettingError:
            engine.registry.adopt(before)
            self._names[name] = names
            raise
        return added

    def _run(self, registry: Registry, name: str, text: str) -> list[Name]:
        added = run_policy(name, text, registry, self._names.get(name, []))
        self._names[name] = added
        return added
