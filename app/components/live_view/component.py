"""The parts of the live view as one Streamlit component, registered once at import."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from .bundle import default_text, module_source

PARTS = ("strip", "stage", "side", "ladder")

_component = st.components.v2.component("kv_live_view", js=module_source("streamlit"))


def live_view(
    part: str,
    *,
    data: dict[str, Any],
    key: str | None = None,
    on_command: Callable[[], None] | None = None,
) -> dict[str, Any] | None:
    """Mounts one part and returns the command of this run, or None.

    `part`: strip, stage, side or ladder. `data`: text, lang, is_driver, num_viewers, selected,
    selected_request, block, pages, marks, can_undo, can_redo, present, act, live_url; `text` may be
    left out (English) and `langs` lists what the language button offers. `on_command` runs first,
    as Streamlit's callbacks do; it reads the commands with `read_commands(key)`. A command is
    {"name", "nonce", "tab", ...}; `done`, the nonces of those that were run, keeps one that came
    while the server was busy from being lost. Raises ValueError for an unknown part.
    """
    if part not in PARTS:
        raise ValueError(f"part = {part!r} is unknown: choose one of {', '.join(PARTS)}")
    payload = {"text": default_text(), "live_url": "/live", **data, "part": part}
    result = _component(
        key=key or f"live_{part}", data=payload, on_command_change=on_command or (lambda: None)
    )
    command: dict[str, Any] | None = result.command
    return command


def read_commands(key: str) -> list[dict[str, Any]]:
    """The commands of the part mounted under `key`, oldest first, for use inside its callback.

    Before the newest come those that may have been lost; some of them may have been run already.
    """
    state = st.session_state.to_dict().get(key)  # does not end the callback, as reading [key] may
    command = state.get("command") if state else None
    return [*command.get("earlier", []), command] if command else []
