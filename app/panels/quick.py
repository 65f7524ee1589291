"""The three buttons that show something at once, each undoable and each naming what to look at."""

from pathlib import Path
from typing import Any

import streamlit as st

from app.panels.act import apply_changes
from app.panels.page import Page, current_page
from app.panels.work import start_preset
from workbench.model.fetch import cache_dir

QUICK_DRAM_MIB, QUICK_DISK_MIB = 64.0, 256.0
QUICK_SHARED_MIB, QUICK_OBJECT_MIB = 256.0, 1024.0


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
    """Switch a lower tier on: G2 (DRAM), G3 (disk), G3.5 (a shared store) or G4 (objects)."""
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "G2": ({"tiers.dram_mib": QUICK_DRAM_MIB}, "quick.dram_look"),
        "G3": ({"tiers.disk_mib": QUICK_DISK_MIB}, "quick.disk_look"),
        "G3.5": ({"tiers.shared": "store", "tiers.shared_mib": QUICK_SHARED_MIB},
                 "quick.shared_look"),
        "G4": ({"tiers.object_url": str(object_folder()), "tiers.object_mib": QUICK_OBJECT_MIB},
               "quick.object_look"),
    }  # fmt: skip
    what, look = changes[tier]
    apply_changes(page, what, page.texts(look))


def object_folder() -> Path:
    """Where objects lie if nobody says where: a folder of this user's own."""
    return cache_dir() / "objects"
