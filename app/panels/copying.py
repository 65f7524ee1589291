"""*Copy*: the settings as link, Python and flags, and the files, in one dialog."""

import streamlit as st

from app.panels.export import export_all
from app.panels.files import show_files
from app.panels.link_panel import page_address
from app.panels.page import Page, current_page

LANGUAGES = {"link": None, "python": "python", "vllm": "bash", "sglang": "bash"}


def open_copy() -> None:
    """Callback: show the dialog in this run."""
    current_page().state.copy_open = True


def show_copy(page: Page) -> None:
    """The dialog, if it was asked for in this run."""
    if not page.state.copy_open:
        return
    page.state.copy_open = False
    texts = page.texts

    @st.dialog(texts("copy.title"), width="large")
    def dialog() -> None:
        exports = export_all(texts, page.engine.history.config, page_address(page))
        for name, text in exports.items():
            st.caption(texts(f"copy.{name}"))
            st.code(text, language=LANGUAGES[name], wrap_lines=True)
        show_files(page)

    dialog()
