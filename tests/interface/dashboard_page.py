"""The page *Live* run by AppTest: its knobs, its buttons, its answer, and the shared history."""

from typing import Any

from streamlit.testing.v1 import AppTest

from app.panels.engine import get_engine
from app.panels.history import History
from tests.interface.dashboard import ROOT
from workbench.config import all_settings


def new_page() -> AppTest:
    """A tab that was not run yet."""
    return AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)


def checked(app: AppTest) -> AppTest:
    """No script may raise."""
    assert [error.message for error in app.exception] == []
    return app


def knobs(app: AppTest, path: str) -> list[Any]:
    """The widgets of a setting, whatever their epoch and kind."""
    item = all_settings()[path]
    if isinstance(item.default, bool):
        found = app.toggle
    elif item.metadata["choices"]:
        found = app.selectbox
    elif isinstance(item.default, str):
        found = app.text_input
    else:
        found = app.select_slider if item.metadata["main"] else app.number_input
    start = f"knob_{path.replace('.', '_')}__"
    return [widget for widget in found if str(widget.key).startswith(start)]


def knob(app: AppTest, path: str) -> Any:
    """The one widget of a setting."""
    (widget,) = knobs(app, path)
    return widget


def turn(app: AppTest, path: str, value: Any) -> AppTest:
    """Set a knob and run."""
    return checked(knob(app, path).set_value(value).run())


def button(app: AppTest, key: str) -> AppTest:
    """Press a button and run."""
    return checked(app.button(key=key).click().run())


def answer(app: AppTest) -> str:
    """The sentence in the answer's place."""
    return str(app.caption[0].value).replace("\\", "")


def shared_history() -> History:
    """The history that all tabs share."""
    return get_engine().history
