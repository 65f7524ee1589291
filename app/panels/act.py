"""What controls do: every change goes through these few functions, whoever asks for it."""

import threading
from collections.abc import Callable
from typing import Any

from app.panels.history import ConflictError
from app.panels.page import Page
from app.text.sentences import change_text, report_sentence, setting_label
from workbench.config import all_settings
from workbench.errors import WorkbenchError

PICTURE_FIRST_S = 0.06  # a few display frames; the sentence about the change comes after them


def attempt(page: Page, action: Callable[[], str | None]) -> bool:
    """Run `action`; its sentence becomes the answer, a refusal the problem. True if it worked."""
    page.state.problem = ""
    if not page.engine.driver.claim(page.state.tab):
        page.state.problem = page.texts("state.viewer")
        return False
    try:
        answer = action()
    except ConflictError as conflict:
        what = ", ".join(setting_label(page.texts, path) for path in str(conflict).split(", "))
        page.state.problem = page.texts("report.conflict", what=what)
        return False
    except WorkbenchError as error:
        page.state.problem = sentence(str(error))
        return False
    if answer is not None:
        page.state.answer = answer
    return True


def apply_changes(page: Page, changes: dict[str, Any], hint: str = "") -> bool:
    """Apply settings at once and tell what it did; `hint` names what to look at."""
    history = page.engine.history

    def run() -> str:
        report = history.apply(changes, page.state.seen_version)
        page.state.seen_version = history.version
        # The browser has the picture by now; drawing the page anew would hold it up.
        threading.Event().wait(PICTURE_FIRST_S)
        told = report_sentence(page.texts, report)
        return f"{hint} {told}" if hint else told

    return attempt(page, run)


def start_requests(
    page: Page, start: Callable[[], list[str]], label: str, done: str = "", workload: str = ""
) -> bool:
    """Start requests as one undoable change; `done` is a sentence with `{n}`."""

    def run() -> str:
        ids = page.engine.history.start(start, label, workload)
        told = done or page.texts("work.started" if len(ids) != 1 else "work.started_one")
        return told.replace("{n}", str(len(ids)))

    return attempt(page, run)


def undo(page: Page) -> bool:
    """Take the newest change back."""
    return attempt(page, lambda: _told(page, page.engine.history.undo(), "report.undone"))


def redo(page: Page) -> bool:
    """Make the change that was taken back last again."""
    return attempt(page, lambda: _told(page, page.engine.history.redo(), "report.redone"))


def _told(page: Page, entry: Any, key: str) -> str | None:
    page.state.seen_version = page.engine.history.version
    page.state.pending.clear()
    if entry is None:
        return None
    values = entry.previous if key == "report.undone" else entry.changes
    what = ", ".join(change_text(page.texts, path, value) for path, value in values.items())
    if entry.request_ids:
        what = entry.label
    return page.texts(key, what=what)


def sentence(text: str) -> str:
    """`text` with a full stop and a capital, unless a setting's path begins it."""
    text = text.strip().rstrip(".")
    if text.partition(" ")[0].rstrip(":") not in all_settings():
        text = text[:1].upper() + text[1:]
    return f"{text}." if text else ""
