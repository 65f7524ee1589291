"""One running request: stop it, or compare it with full precision."""

import streamlit as st

from app.panels.act import attempt
from app.panels.page import Page, current_page
from workbench.request import RequestStatus
from workbench.snapshot import RequestView


def live_requests(page: Page) -> list[RequestView]:
    """Requests that have not finished."""
    if page.snapshot is None:
        return []
    return [view for view in page.snapshot.requests if not RequestStatus(view.status).is_finished]


def show_request(page: Page) -> None:
    """Popover with the requests, *Abort* and the shadow switch."""
    texts = page.texts
    with st.popover(texts("button.request"), key="request_menu"):
        ids = [view.request_id for view in live_requests(page)]
        if not ids:
            st.caption(texts("request.none"))
            return
        if st.session_state.get("request_choice") not in ids:
            chosen = page.state.selected_request
            st.session_state["request_choice"] = chosen if chosen in ids else ids[0]
        st.selectbox(texts("request.choose"), ids, key="request_choice", on_change=request_chosen)
        with st.container(horizontal=True):
            st.button(texts("button.abort"), key="abort", on_click=abort_chosen,
                      disabled=page.locked)
            st.button(texts("button.shadow_on"), key="shadow_on", on_click=shadow_chosen,
                      args=(True,), disabled=page.locked, help=texts("request.shadow_help"))
            st.button(texts("button.shadow_off"), key="shadow_off", on_click=shadow_chosen,
                      args=(False,), disabled=page.locked)


def request_chosen() -> None:
    """Callback: the picture follows the choice."""
    page = current_page()
    page.state.selected_request = st.session_state["request_choice"]


def abort_chosen() -> None:
    """Callback of *Abort*."""
    abort_request(current_page(), st.session_state["request_choice"])


def shadow_chosen(on: bool) -> None:
    """Callback of the shadow switch."""
    set_shadow(current_page(), st.session_state["request_choice"] if on else None)


def abort_request(page: Page, request_id: str) -> bool:
    """Stop one request; its blocks are freed."""

    def run() -> str:
        page.engine.client.abort(request_id)
        return page.texts("request.aborted", request=request_id)

    return attempt(page, run)


def set_shadow(page: Page, request_id: str | None) -> bool:
    """Compare one request with full precision, or stop comparing (None)."""

    def run() -> str | None:
        if request_id is None:
            page.engine.client.stop_shadow()
            return None
        page.engine.client.start_shadow(request_id)
        return page.texts("request.shadow_started", request=request_id)

    return attempt(page, run)
