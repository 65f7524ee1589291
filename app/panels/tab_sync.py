"""Lets Python know which browser tab it serves, and when the controls must be read again."""

from pathlib import Path

import streamlit as st

from app.panels.page import Page, current_page, held

KEY = "tab_sync"
_component = st.components.v2.component(
    "tab_sync", js=(Path(__file__).parent / "tab_sync.js").read_text(encoding="utf-8")
)


def watch_tab(page: Page) -> None:
    """Mount the invisible part that reports the tab's id and changes made elsewhere."""
    data = {
        "tab": page.state.tab,
        "version": page.engine.history.engine_version,
        "state": page.drawn_state,
        "drives": page.is_driver,
        "live_url": "/live",
    }
    _component(key=KEY, data=data, on_command_change=tab_told)


def tab_told() -> None:
    """Callback: remember the tab, and put the engine's values into the controls again."""
    state = held(KEY)
    command = state.get("command") if state else None
    if not command:
        return
    page = current_page()
    page.state.tab = str(command.get("tab", ""))
    if command.get("name") == "hello":
        page.engine.driver.claim(page.state.tab)  # a new tab drives if nobody else is there
    page.engine.follow()
