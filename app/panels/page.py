"""What one run of the page works with: texts, client, shared history, and this tab's own state."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from app.panels.engine import Engine, get_engine
from app.text import DEFAULT_LANGUAGE, Texts, load_texts
from workbench.errors import WorkbenchError
from workbench.snapshot import Snapshot


@dataclass
class TabState:
    """State of one browser tab, kept in its Streamlit session."""

    tab: str = ""  # the id the browser keeps for this tab, known after its first command
    language: str = DEFAULT_LANGUAGE
    seen_version: int = -1
    shown: dict[str, Any] = field(default_factory=dict)  # what each knob holds
    epochs: dict[str, int] = field(default_factory=dict)  # how often the page set a knob
    initial: dict[str, Any] = field(default_factory=dict)  # to what it set it
    pending: dict[str, Any] = field(default_factory=dict)
    answer: str = ""  # what the last change did
    problem: str = ""  # one sentence about what could not be done
    selected: dict[str, Any] | None = None
    selected_request: str | None = None
    present_act: int = 0  # 0 = not presenting
    present_undo: int = 0
    copy_open: bool = False
    chat: list[tuple[str, str]] = field(default_factory=list)  # (what was said, request id)
    num_asked: int = 0  # messages sent from this tab
    url: dict[str, str] | None = None  # the settings this tab last wrote to its address
    offer: dict[str, Any] = field(default_factory=dict)
    offer_error: str = ""
    done: deque[str] = field(default_factory=lambda: deque(maxlen=64))  # commands that were run
    acted: bool = False  # a control was used in this run
    upload_report: list[str] = field(default_factory=list)
    view: str = ""  # the page that was drawn last: live or quality
    goto: str = ""  # the page that a press in the strip asks for
    quality_chosen: str = ""  # name of the setting whose report is open
    quality_epochs: dict[str, int] = field(default_factory=dict)  # as `epochs`, for its controls
    quality_version: int = -1  # of the job's status, as drawn
    quality_drawing: bool = False  # the whole page is being drawn
    quality_file_report: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """One run of the page."""

    texts: Texts
    engine: Engine
    state: TabState
    is_driver: bool
    drawn_state: str  # of the engine, the same throughout the run: loading, running or dead

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest picture; None while the engine loads, and after a death before the first."""
        try:
            return self.engine.snapshot()
        except WorkbenchError:
            return None  # its face is shown instead

    @property
    def ready(self) -> bool:
        """True if commands can be sent."""
        return self.drawn_state == "running"

    @property
    def locked(self) -> bool:
        """True if this tab's controls only show values."""
        return not self.is_driver or not self.ready


def held(key: str) -> Any:
    """What Streamlit holds under `key`, None if nothing.

    Callbacks read with this alone: reading an item of `st.session_state` ends a callback there
    when the browser has sent something newer, and what the callback was to do is lost.
    """
    return st.session_state.to_dict().get(key)


def tab_state() -> TabState:
    """This tab's state, made on first use."""
    state: TabState | None = held("tab_state")
    if state is None:
        state = st.session_state["tab_state"] = TabState()
    return state


def open_page() -> Page:
    """Collect what a run needs; the engine is started on the first call of the process."""
    state = tab_state()
    engine = get_engine()
    state_now = engine.state
    # Before the browser has told its id the controls look usable, so that they do not flash.
    is_driver = not state.tab or engine.is_driver(state.tab)
    return Page(load_texts(state.language), engine, state, is_driver, state_now)


def enter(page: Page, view: str) -> None:
    """Note which page is drawn; the address of a page just opened is not the browser's Back."""
    if page.state.view != view:
        page.state.acted = page.state.acted or bool(page.state.view)
        page.state.view = view


def current_page() -> Page:
    """The page for a callback: as `open_page`, and the run counts as caused by a control."""
    page = open_page()
    page.state.acted = True
    return page
