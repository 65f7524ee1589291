"""*Copy*: the settings as link, Python and flags; and the figures before and after a change."""

import streamlit as st

from app.panels.compare import compare, number_text
from app.panels.export import export_all
from app.panels.link_panel import page_address
from app.panels.page import Page, current_page

LANGUAGES = {"link": None, "python": "python", "vllm": "bash", "sglang": "bash"}


def show_copy(page: Page) -> None:
    """Popover with four texts, each with its own copy button."""
    texts = page.texts
    with st.popover(texts("button.copy"), key="copy"):
        exports = export_all(texts, page.engine.history.config, page_address(page))
        for name, text in exports.items():
            st.caption(texts(f"copy.{name}"))
            st.code(text, language=LANGUAGES[name], wrap_lines=True)


def show_before_after(page: Page) -> None:
    """Popover that compares the figures now with those just before the last change."""
    texts = page.texts
    with st.popover(texts("report.before_after"), key="before_after", on_change=comparison_opened):
        entry = page.engine.history.last
        if entry is None or page.snapshot is None or not entry.numbers:
            st.caption(texts("report.no_numbers"))
            return
        for line in compare(entry.numbers, page.snapshot.numbers):
            told = f"{number_text(line.before)} → {number_text(line.after)}"
            if line.undecided:
                told += f" · {texts('report.undecided')}"
            st.caption(f"**{texts.get('number.' + line.name, line.name)}** {told}")


def comparison_opened() -> None:
    """Callback: opening the popover reads the figures again."""
    current_page()
