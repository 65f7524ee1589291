"""What stands in the buttons' place while the engine loads, is dead, or another tab drives."""

import streamlit as st

from app.panels.act import attempt
from app.panels.page import Page, current_page
from app.panels.quick import show_quick
from app.text.sentences import escape


def show_face(page: Page) -> None:
    """One row of constant height: the three buttons, or what stands in their place."""
    texts, engine = page.texts, page.engine
    if engine.state == "dead":
        st.markdown(f":orange[:material/error: {escape(dead_sentence(page))}]", width="stretch")
        st.button(
            texts("button.restart"),
            key="restart",
            type="primary",
            on_click=restart,
            disabled=not page.is_driver,
        )
        return
    if engine.state == "loading":
        st.markdown(texts("state.loading"), width="stretch")
        return
    if not page.is_driver:
        st.markdown(escape(texts("state.viewer")), width="stretch")
        st.button(texts("button.take_over"), key="take_over", on_click=take_over)
        return
    show_quick(page)


def dead_sentence(page: Page) -> str:
    """Why the engine stopped."""
    reason = page.engine.death_reason.strip().removeprefix("the engine stopped: ").rstrip(".") + "."
    return page.texts("state.dead", reason=reason)


def restart() -> None:
    """Callback of *Restart*: a new process goes on where each answer was."""
    page = current_page()
    attempt(page, lambda: page.engine.restart())


def take_over() -> None:
    """Callback of *Take over*: this tab drives from now on."""
    page = current_page()
    page.engine.take_over(page.state.tab)
