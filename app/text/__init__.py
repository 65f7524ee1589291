"""Every sentence of the dashboard, kept in one TOML file a language beside this module.

The picture's own English strings lie beside its source; another language keeps all in its file.
"""

import functools
import json
import string
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_LANGUAGE = "en"
_FOLDER = Path(__file__).parent
_COMPONENT = _FOLDER.parent / "components" / "live_view" / "text_keys.json"


class _Values(dict[str, Any]):
    """Leaves a placeholder without a value as it is, so that a sentence is never lost."""

    def __missing__(self, name: str) -> str:
        return "{" + name + "}"


@dataclass(frozen=True)
class Texts:
    """The strings of one language by dotted key, such as `knob.cache.k_format.label`."""

    language: str
    strings: dict[str, str]

    def __call__(self, key: str, **values: Any) -> str:
        """The string with its `{placeholders}` filled in; raises KeyError for an unknown key."""
        text = self.strings[key]
        return string.Formatter().vformat(text, (), _Values(values)) if values else text

    def get(self, key: str, default: str = "") -> str:
        """The string, or `default` where there is none."""
        return self.strings.get(key, default)

    def component(self) -> dict[str, str]:
        """The strings that the moving picture shows."""
        return {key: self.strings[key] for key in component_strings()}


def languages() -> list[str]:
    """Languages that have a file, the default one first."""
    found = sorted(path.stem for path in _FOLDER.glob("*.toml"))
    return sorted(found, key=lambda name: name != DEFAULT_LANGUAGE)


def read_strings(language: str) -> dict[str, str]:
    """The flattened strings of one language."""
    with (_FOLDER / f"{language}.toml").open("rb") as file:
        strings = _flatten(tomllib.load(file))
    return component_strings() | strings if language == DEFAULT_LANGUAGE else strings


@functools.cache
def component_strings() -> dict[str, str]:
    """English strings of the moving picture by key."""
    strings: dict[str, str] = json.loads(_COMPONENT.read_text(encoding="utf-8"))
    return strings


@functools.cache
def load_texts(language: str = DEFAULT_LANGUAGE) -> Texts:
    """Strings of `language`; what is missing there, or an unknown language, reads in English."""
    strings = read_strings(DEFAULT_LANGUAGE)
    if language in languages() and language != DEFAULT_LANGUAGE:
        strings = strings | read_strings(language)
    else:
        language = DEFAULT_LANGUAGE
    return Texts(language, strings)


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value)
    return flat
