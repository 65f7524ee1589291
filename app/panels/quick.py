"""The three buttons that show something at once, each undoable and each naming what to look at."""

import streamlit as st

from app.panels.act import apply_changes
from app.panels.page import Page, current_page
from app.panels.work import start_preset

QUICK_DRAM_MIB, QUICK_DISK_MIB = 64.0, 256.0


def show_quick(page: Page) -> None:
    """The buttons in one row."""
    texts = page.texts
    st.button(
        texts("button.fill"),
        key="quick_fill",
        on_click=fill_cache,
        help=texts("quick.fill_look"),
        disabled=page.locked,
    )
    st.button(
        texts("button.int8"),
        key="quick_int8",
        on_click=store_int8,
        help=texts("quick.int8_look"),
        disabled=page.locked,
    )
    st.button(
        texts("button.dram"),
        key="quick_dram",
        on_click=add_dram,
        help=texts("quick.dram_look"),
        disabled=page.locked,
    )


def fill_cache() -> None:
    """Callback: start more requests than fit."""
    page = current_page()
    start_preset(page, "thrash", page.texts("quick.fill_done"))


def store_int8() -> None:
    """Callback: keys and values in int8."""
    page = current_page()
    relief = {"cache.k_format": "int8", "cache.v_format": "int8"}
    cache = page.engine.history.config.cache
    if (cache.k_format, cache.v_format) == ("int8", "int8"):
        page.state.problem = page.texts("quick.int8_already")
        return
    apply_changes(page, relief, page.texts("quick.int8_look"))


def add_dram() -> None:
    """Callback: a DRAM tier of as many bytes as HBM has."""
    page = current_page()
    tiers = page.engine.history.config.tiers
    if tiers.dram_mib:
        page.state.problem = page.texts("quick.dram_already", mib=f"{tiers.dram_mib:g}")
        return
    add_tier(page, "G2")


def add_tier(page: Page, tier: str) -> None:
    """Switch a lower tier on: "G2" (DRAM) or "G3" (disk)."""
    if tier == "G3":
        apply_changes(page, {"tiers.disk_mib": QUICK_DISK_MIB}, page.texts("quick.disk_look"))
    else:
        apply_changes(page, {"tiers.dram_mib": QUICK_DRAM_MIB}, page.texts("quick.dram_look"))
