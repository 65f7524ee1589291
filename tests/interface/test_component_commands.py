"""Python has an answer to every command that the picture can send."""

import ast
import inspect
import re

from app.components.live_view.bundle import SOURCES
from app.panels import canvas

SENT = re.compile(r'\bsend\("(\w+)"')
ACTS = re.compile(r'\bact\("(\w+)"')


def test_no_command_is_sent_into_the_void() -> None:
    sent: set[str] = set()
    for path in SOURCES.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        sent |= set(SENT.findall(text)) | set(ACTS.findall(text) if path.name == "strip.js" else [])
    assert {"play", "undo", "go_page", "select_block", "add_tier"} <= sent
    known = {
        node.value
        for node in ast.walk(ast.parse(inspect.getsource(canvas)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert sent <= known, f"run_command has no answer to {sorted(sent - known)}"
