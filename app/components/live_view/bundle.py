"""Joins the small JavaScript files of `src/` into one ES module, without a build tool.

Each file may import names from its neighbours with one-line `import {...} from "./file.js"` and
export declarations in place; all top-level names are unique across files (a test holds that), so
that joining in order of dependence is enough. The styles become the constant CSS_TEXT.
"""

import json
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_PUBLIC = (
    "mount, Store, LiveStore, sharedStore, decodeFrame, openReplay, replayHtml, packFrames, "
    "eventSentence, makeWords"
)


def files_in_order(entry: str = "entry.js") -> list[str]:
    """File names of `src/` that `entry` needs, each after all it imports."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order or name == "style.js":
            return
        for needed in _IMPORT.findall((SOURCES / name).read_text(encoding="utf-8")):
            visit(needed)
        order.append(name)

    visit(entry)
    return order


@cache
def module_source(target: str = "streamlit") -> str:
    """The whole component as the text of one ES module.

    `target`: `streamlit` (default export of components.v2) or `widget` (anywidget's default
    export). Both also export the render core. Raises ValueError for any other target.
    """
    defaults = {"streamlit": "renderStreamlit", "widget": "{ render: renderWidget }"}
    if target not in defaults:
        raise ValueError(f"target = {target!r} is unknown: choose streamlit or widget")
    css = (HERE / "live_view.css").read_text(encoding="utf-8")
    parts = [f"const CSS_TEXT = {json.dumps(css)};\n"]
    for name in files_in_order():
        text = (SOURCES / name).read_text(encoding="utf-8")
        parts.append(f"// --- {name}\n" + _EXPORT.sub("", _IMPORT.sub("", text)))
    parts.append(f"export {{ {_PUBLIC} }};\nexport default {defaults[target]};\n")
    return "\n".join(parts)


@cache
def default_text() -> dict[str, str]:
    """The English strings by key; another language gives the same keys."""
    loaded: dict[str, str] = json.loads((HERE / "text_keys.json").read_text(encoding="utf-8"))
    return loaded
