"""The address bar and the settings: reads it when opened, writes it after each apply."""

from typing import Any

import streamlit as st

from app.panels.act import apply_changes, redo, sentence, undo
from app.panels.link import OTHER_PARAMS, link_address, link_changes, link_params, read_link
from app.panels.page import Page, current_page, tab_state
from app.text.sentences import change_text, escape
from workbench.config import EngineConfig, replace_settings


def read_address(page: Page) -> None:
    """Compare the address with the settings before anything is drawn.

    First run of a tab: a link that differs is offered, never applied. Later: an address that
    changed without a control's doing is the browser's Back or Forward, which is undo or redo.
    """
    state, history = page.state, page.engine.history
    now = {key: text for key, text in st.query_params.items() if key not in OTHER_PARAMS}
    if not page.ready:
        return
    if state.url is None:
        state.url = dict(now)
        content = read_link(now)
        state.offer = link_changes(content, history.config) if content.changes else {}
        state.offer_error = content.error
        return
    if state.acted or now == state.url:
        return
    state.url = dict(now)
    before, after = history.last, history.next
    if before and now == _params_after(history.config, before.previous):
        undo(page)
    elif after and now == _params_after(history.config, after.changes):
        redo(page)
    else:
        content = read_link(now)
        state.offer = link_changes(content, history.config)
        state.offer_error = content.error


def write_address(page: Page) -> None:
    """Put the applied settings into the address, unless a link's offer is still open."""
    state = page.state
    state.acted = False
    if not page.ready or state.offer or state.url is None:
        return
    wanted = link_params(page.engine.history.config)
    shown = {key: text for key, text in st.query_params.items() if key not in OTHER_PARAMS}
    if wanted != shown:
        kept = {k: t for k, t in st.query_params.items() if k in OTHER_PARAMS}
        st.query_params.from_dict({**kept, **wanted})
    state.url = wanted


def show_offer(page: Page) -> None:
    """A link's changes with *Apply* and *Keep*, and one sentence about what was not understood."""
    state, texts = page.state, page.texts
    if not state.offer and not state.offer_error:
        return
    with st.container(key="offer_bar", gap="xsmall"):
        if state.offer_error:
            st.warning(
                escape(sentence(texts("state.link_unknown", error=state.offer_error))),
                icon=":material/link_off:",
            )
        if state.offer:
            _show_changes(page)
        else:
            st.button(texts("button.keep_link"), key="offer_keep", on_click=refuse_offer)


def _show_changes(page: Page) -> None:
    state, texts = page.state, page.texts
    what = ", ".join(change_text(texts, path, value) for path, value in state.offer.items())
    count = len(state.offer)
    with st.container(horizontal=True, vertical_alignment="center", key="offer"):
        one = "_one" if count == 1 else ""
        st.markdown(escape(texts(f"state.link_offer{one}", n=count, what=what)))
        label = texts(f"button.apply_link{one}", n=count)
        st.button(
            label, key="offer_apply", type="primary", on_click=accept_offer, disabled=page.locked
        )
        st.button(texts("button.keep_link"), key="offer_keep", on_click=refuse_offer)


def accept_offer() -> None:
    """Callback: the link's settings as one change."""
    page = current_page()
    if apply_changes(page, dict(page.state.offer)):
        page.state.offer.clear()
        page.state.offer_error = ""


def refuse_offer() -> None:
    """Callback: the engine stays as it is, and the address follows it."""
    state = tab_state()
    state.acted = True
    state.offer.clear()
    state.offer_error = ""


def page_address(page: Page) -> str:
    """The whole address of this page with the applied settings."""
    return link_address(str(st.context.url or "http://localhost:8501"), page.engine.history.config)


def _params_after(config: EngineConfig, changes: dict[str, Any]) -> dict[str, str]:
    return link_params(replace_settings(config, changes))
