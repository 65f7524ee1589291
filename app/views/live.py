"""The page *Live*: knobs, moving picture, inspector."""

import streamlit as st

from app.panels.banner import show_face
from app.panels.canvas import show_part
from app.panels.copying import open_copy, show_copy
from app.panels.knobs import show_answer, show_knobs
from app.panels.link_panel import read_address, show_offer, write_address
from app.panels.page import Page, enter, open_page
from app.panels.tab_sync import watch_tab
from app.panels.terms import show_terms
from app.panels.work import show_chat, show_work

KNOBS_PX, SIDE_PX = 264, 300


def show_live() -> None:
    """Draw the page once; live data moves inside the picture without another run."""
    page = open_page()
    enter(page, "live")
    read_address(page)
    with st.container(key="strip", gap=None):
        show_part(page, "strip")
        watch_tab(page)
    show_offer(page)
    with st.container(key="columns", horizontal=True, wrap=False, gap="small"):
        if not page.state.present_act:
            with st.container(key="knobs", width=KNOBS_PX, gap=None):
                show_answer(page)
                with st.container(key="knob_groups", gap=None):
                    show_knobs(page)
        else:
            st.empty()  # keeps the picture's place, so that it is not made anew
        with st.container(key="middle", width="stretch", gap="xsmall"):
            _toolbar(page)
            show_part(page, "stage")
        with st.container(key="right", width=SIDE_PX, gap="xsmall"):
            with st.container(key="side", gap=None):
                show_part(page, "side")
            show_chat(page)
    show_copy(page)
    write_address(page)


def _toolbar(page: Page) -> None:
    """The row above the picture: what to do with it."""
    with st.container(key="toolbar", horizontal=True, gap="xsmall", vertical_alignment="center"):
        show_face(page)
        show_work(page)
        st.button(page.texts("button.export"), key="copy", on_click=open_copy)
        show_terms(page)
