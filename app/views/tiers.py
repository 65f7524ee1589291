"""The page *Tiers*: where blocks lie, what moving them costs, and whether it was worth it."""

import streamlit as st

from app.panels.canvas import show_part
from app.panels.copying import show_copy
from app.panels.knobs import show_answer, show_group
from app.panels.link_panel import read_address, show_offer, write_address
from app.panels.page import Page, enter, open_page
from app.panels.tab_sync import watch_tab
from app.panels.tiers_cost import show_cost
from app.panels.tiers_devices import show_devices
from app.panels.tiers_faults import show_faults
from app.panels.tiers_journey import show_journey
from app.panels.tiers_overlap import show_overlap
from app.panels.tiers_own import show_own
from app.panels.tiers_worth import show_flow, show_worth, tiers_of

LEFT_PX, RIGHT_PX = 288, 280


def show_tiers() -> None:
    """Draw the page; the ladder moves by itself, the table looks every few seconds."""
    page = open_page()
    enter(page, "tiers")
    read_address(page)
    with st.container(key="strip", gap=None):
        show_part(page, "strip")
        watch_tab(page)
    show_offer(page)
    with st.container(key="tiers", horizontal=True, gap="medium", wrap=False):
        with st.container(key="tiers_knobs", width=LEFT_PX, gap=None):
            show_answer(page)
            with st.container(key="knob_groups", gap=None):
                show_group(page, "S")
        with st.container(key="tiers_main", width="stretch", gap="small"):
            _main(page)
    show_copy(page)
    write_address(page)


def _main(page: Page) -> None:
    texts, report = page.texts, tiers_of(page)
    with st.container(key="tiers_top", horizontal=True, gap="medium", wrap=False):
        with st.container(key="tiers_ladder", width="stretch", gap="xsmall"):
            show_part(page, "ladder")
        with st.container(key="tiers_faults", width=RIGHT_PX, gap="xsmall"):
            show_faults(page, report)
    if report is None:
        st.caption(texts("tiers.not_yet"))
        return
    names = ("worth", "cost", "flow", "journey", "overlap", "devices", "own")
    worth, cost, flow, journey, overlap, devices, own = st.tabs(
        [texts(f"tiers.tab.{name}") for name in names]
    )
    with worth:
        show_worth()
    with cost:
        show_cost(page, report)
    with flow:
        show_flow()
    with journey:
        show_journey(page)
    with overlap:
        show_overlap(page, report)
    with devices:
        show_devices(page)
    with own:
        show_own(page)
    st.button(texts("tiers.refresh"), key="tiers_refresh", help=texts("tiers.refresh_help"))
