"""The moving picture: what it is given, and what its commands do."""

from functools import partial
from typing import Any

import msgspec
import streamlit as st

from app.components.live_view import live_view, read_commands
from app.panels.act import attempt, redo, undo
from app.panels.page import Page, current_page, tab_state
from app.panels.present import ACTS, go_to
from app.panels.quick import add_tier
from app.panels.requests import abort_request, set_shadow
from app.panels.terms import NOTEBOOK_URL
from app.panels.work import start_preset
from app.text import languages
from app.text.sentences import change_text
from workbench.errors import WorkbenchError

LIVE_URL = "/live"
FIRST_WORKLOAD = "shared_chat"
# Commands that change nothing for others: a viewer may give them.
OWN_VIEW = (
    "select_block", "select_request", "clear_selection", "take_over", "set_lang", "open_copy",
    "go_page",
)  # fmt: skip


def show_part(page: Page, part: str) -> None:
    """Mount one part of the picture: strip, stage, side or ladder."""
    key = f"live_{part}"
    live_view(part, key=key, data=picture_data(page, part), on_command=partial(on_command, key))


def picture_data(page: Page, part: str) -> dict[str, Any]:
    """What a part is told besides the live frames."""
    state, history = page.state, page.engine.history
    marks = [
        {"time_s": entry.engine_time_s, "label": mark_label(page, entry)}
        for entry in history.marks()[-20:]
    ]
    return {
        "part": part,
        "text": picture_text(page),
        "lang": page.texts.language,
        "langs": languages(),
        "is_driver": page.is_driver,
        "num_viewers": page.engine.num_viewers,
        "selected": state.selected,
        "selected_request": state.selected_request,
        "block": selected_block(page) if part == "side" else None,
        "pages": strip_pages(page),
        "view": state.view,
        "marks": marks,
        "can_undo": history.can_undo,
        "can_redo": history.can_redo,
        "present": bool(state.present_act),
        "act": ACTS[state.present_act - 1] if state.present_act else "",
        "done": list(state.done),
        "live_url": LIVE_URL,
        "workload": FIRST_WORKLOAD,
    }


def strip_pages(page: Page) -> list[dict[str, Any]]:
    """The pages that the strip leads to; `name` is what a press sends."""
    titles = {name: page.texts(f"page.{name}") for name in ("live", "quality", "tiers")}
    return [
        {"url": "/" if name == "live" else f"/{name}", "name": name, "title": title,
         "active": name == page.state.view}
        for name, title in titles.items()
    ]  # fmt: skip


def picture_text(page: Page) -> dict[str, str]:
    """The picture's strings; each term leads to its notebook."""
    text = page.texts.component()
    return text | {f"{key}.link": NOTEBOOK_URL for key in text if key.startswith("term.")}


def mark_label(page: Page, entry: Any) -> str:
    """A change in a few words, for the sparklines."""
    if entry.request_ids:
        return page.texts("report.mark_requests", n=len(entry.request_ids))
    return ", ".join(change_text(page.texts, path, v) for path, v in entry.changes.items())


def selected_block(page: Page) -> dict[str, Any] | None:
    """The selected block as the engine sees it now; None if nothing is selected or it is gone."""
    selected = page.state.selected
    if not selected or not page.ready:
        return None
    try:
        view = page.engine.client.inspect(str(selected["tier"]), int(selected["cell"]))
    except WorkbenchError:
        page.state.selected = None  # the grid was laid out anew and has no such cell
        return None
    block: dict[str, Any] = msgspec.to_builtins(view)
    return block


def on_command(key: str) -> None:
    """Callback of every part: run the commands of the picture that were not run yet, in order."""
    state = tab_state()
    state.acted = True  # also if all were run: this run is not the browser's Back
    for command in read_commands(key):
        nonce = str(command.get("nonce", ""))
        if nonce in state.done:
            continue
        state.done.append(nonce)
        if command.get("tab"):
            state.tab = str(command["tab"])
        run_command(current_page(), str(command.get("name", "")), command)


def run_command(page: Page, name: str, command: dict[str, Any]) -> None:
    """One command by its name; an unknown one does nothing."""
    if name in OWN_VIEW:
        _own_view(page, name, command)
    elif name == "undo":
        undo(page)
    elif name == "redo":
        redo(page)
    elif name == "abort":
        abort_request(page, str(command["request_id"]))
    elif name == "shadow":
        request_id = command.get("request_id")
        set_shadow(page, None if request_id is None else str(request_id))
    elif name == "start_workload":
        start_preset(page, str(command.get("workload", FIRST_WORKLOAD)))
    elif name == "add_tier":
        add_tier(page, str(command.get("tier", "")))
    elif name == "restart":
        attempt(page, lambda: page.engine.restart())
    elif name == "present":
        act = str(command.get("act", ACTS[0]))
        page.state.goto = "live"
        go_to(page, ACTS.index(act) + 1 if command.get("on") and act in ACTS else 0)
    elif name in ("play", "pause", "step", "speed"):
        attempt(page, lambda: _transport(page, name, command))


def _transport(page: Page, name: str, command: dict[str, Any]) -> None:
    client = page.engine.client
    if name == "speed":
        client.set_speed(min(1.0, max(0.01, float(command["value"]))))
    else:
        getattr(client, name)()


def _own_view(page: Page, name: str, command: dict[str, Any]) -> None:
    state = page.state
    if name == "select_block":
        state.selected = {"tier": str(command["tier"]), "cell": int(command["cell"])}
    elif name == "select_request":
        state.selected_request = str(command["request_id"])
    elif name == "clear_selection":
        state.selected, state.selected_request = None, None
    elif name == "take_over":
        page.engine.take_over(state.tab)
        state.problem = ""
    elif name == "open_copy":
        state.copy_open = True
    elif name == "go_page":
        state.goto = str(command.get("page", ""))
    elif name == "set_lang":
        state.language = str(command.get("value", ""))
        st.query_params["lang"] = state.language
