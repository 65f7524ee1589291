"""*Present*: three acts on the running engine, with real applies; the knobs are hidden meanwhile."""

import streamlit as st

from app.panels.act import apply_changes, undo
from app.panels.knobs import escape
from app.panels.page import Page, current_page
from app.panels.quick import QUICK_DRAM_MIB
from app.panels.work import start_preset

NUM_ACTS = 3


def show_present(page: Page) -> None:
    """The act's title and sentence, and the buttons that walk on; nothing while not presenting."""
    act, texts = page.state.present_act, page.texts
    if not act:
        return
    with st.container(key="presenting", horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**{act}. {escape(texts(f'present.act{act}_title'))}** · "
            f"{escape(texts(f'present.act{act}_text'))}",
            width="stretch",
        )
        st.button(texts("button.back"), key="present_back", on_click=go_to, args=(act - 1,),
                  disabled=act == 1)
        st.button(texts("button.next"), key="present_next", type="primary", on_click=go_to,
                  args=(act + 1,), disabled=act == NUM_ACTS or page.locked)
        st.button(texts("button.put_back"), key="present_put_back", on_click=put_back,
                  disabled=page.locked or not page.state.present_undo)
        st.button(texts("button.leave"), key="present_leave", on_click=go_to, args=(0,))


def start_presenting() -> None:
    """Callback of *Present*: the first act."""
    go_to(1)


def go_to(act: int) -> None:
    """Callback: show an act; going forward plays it on the engine, going back undoes it."""
    page = current_page()
    state = page.state
    before = state.present_act
    state.present_act = act
    if act == 0:
        state.present_undo = 0
    elif act < before:
        _undo_acts(page, 1)
    elif play_act(page, act):
        state.present_undo += 1


def put_back() -> None:
    """Callback: undo what the acts did and begin again."""
    page = current_page()
    _undo_acts(page, page.state.present_undo)
    page.state.present_act = 1


def play_act(page: Page, act: int) -> bool:
    """Do on the engine what the act tells; True if it changed something."""
    if act == 1:
        return start_preset(page, "shared_chat")
    if act == 2:
        return start_preset(page, "thrash")
    changes = {"cache.k_format": "int8", "cache.v_format": "int8"}
    config = page.engine.history.config
    relief: dict[str, object] = dict(changes)
    if not config.tiers.dram_mib:
        relief["tiers.dram_mib"] = QUICK_DRAM_MIB
    return apply_changes(page, relief)


def _undo_acts(page: Page, count: int) -> None:
    for _ in range(min(count, page.state.present_undo)):
        if undo(page):
            page.state.present_undo -= 1
