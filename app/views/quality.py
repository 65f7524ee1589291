"""The page *Quality*: what settings cost in output quality, beside the bytes that they take."""

import streamlit as st

from app.panels.canvas import show_part
from app.panels.copying import show_copy
from app.panels.link_panel import read_address, show_offer, write_address
from app.panels.page import Page, enter, open_page
from app.panels.quality_card import show_current
from app.panels.quality_inside import show_heads, show_inside
from app.panels.quality_jobs import jobs_of, show_progress
from app.panels.quality_results import show_chosen, show_plot, show_table
from app.panels.quality_sweep import run_all_formats, show_sweep
from app.panels.quality_told import show_told
from app.panels.tab_sync import watch_tab

LEFT_PX, RIGHT_PX = 312, 300


def show_quality() -> None:
    """Draw the page; while a job runs, its line looks once a second for new reports."""
    page = open_page()
    enter(page, "quality")
    read_address(page)
    page.state.quality_drawing = True
    page.state.quality_version = jobs_of(page).status.version
    page.state.seen_version = page.engine.history.version
    with st.container(key="strip", gap=None):
        show_part(page, "strip")
        watch_tab(page)
    show_offer(page)
    with st.container(key="quality", gap="small"):
        with st.container(key="quality_columns", horizontal=True, gap="medium", wrap=False):
            with st.container(key="quality_left", width=LEFT_PX, gap="small"):
                show_told(page)
                show_current(page)
                show_progress(page)
                st.divider()
                show_sweep(page)
            with st.container(key="quality_main", width="stretch", gap="small"):
                _main(page)
    show_copy(page)
    write_address(page)
    page.state.quality_drawing = False


def _main(page: Page) -> None:
    texts = page.texts
    if not jobs_of(page).results():
        _empty(page)
        show_heads(page)
        return
    with st.container(key="quality_top", horizontal=True, gap="medium", wrap=False):
        with st.container(key="quality_plot_side", width="stretch", gap="xsmall"):
            st.markdown(f"**{texts('quality.plot')}**", help=texts("quality.plot_help"))
            show_plot(page)
        with st.container(key="quality_chosen", width=RIGHT_PX, gap="xsmall"):
            show_chosen(page)
    table, inside, heads = st.tabs(
        [texts("quality.tab_table"), texts("quality.tab_inside"), texts("quality.tab_heads")]
    )
    with table:
        show_table(page)
    with inside:
        show_inside(page)
    with heads:
        show_heads(page)


def _empty(page: Page) -> None:
    """What will stand here, and one button that begins it."""
    texts, running = page.texts, jobs_of(page).status.running
    with st.container(key="quality_empty", gap="small"):
        st.markdown(f"#### {texts('quality.empty_title')}")
        st.markdown(texts("quality.empty_running" if running else "quality.empty"))
        st.button(
            texts("quality.empty_button"), key="quality_all", type="primary",
            on_click=run_all_formats, disabled=page.locked or running,
        )  # fmt: skip
