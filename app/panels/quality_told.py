"""One place, of constant height, for what was done last or what stands in the way."""

import streamlit as st

from app.panels.banner import dead_sentence, restart, take_over
from app.panels.page import Page
from app.text.sentences import escape


def show_told(page: Page) -> None:
    """The answer or the problem; *Restart* or *Take over* while nothing else can be done."""
    state, texts, engine = page.state, page.texts, page.engine
    with st.container(key="quality_told", gap="xsmall"):
        if engine.state == "dead":
            st.markdown(f":orange[:material/error: {escape(dead_sentence(page))}]")
            st.button(texts("button.restart"), key="restart", type="primary", on_click=restart,
                      disabled=not page.is_driver)  # fmt: skip
        elif engine.state == "loading":
            st.caption(texts("state.loading"))
        elif not page.is_driver:
            st.caption(escape(texts("state.viewer")))
            st.button(texts("button.take_over"), key="take_over", on_click=take_over)
        elif state.problem:
            st.caption(f":orange[:material/warning: {escape(state.problem)}]")
        else:
            st.caption(escape(state.answer or texts("quality.start")))
