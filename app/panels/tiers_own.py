"""Policies of the user's own: files of one folder, shown as text, run once that is confirmed."""

from pathlib import Path

import streamlit as st

from app.panels.act import attempt
from app.panels.page import Page, current_page
from app.text.sentences import escape
from workbench.errors import WorkbenchError
from workbench.own_policies import MOST_FILES, policies_folder, policy_files, read_policy

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "placement_policy.py"


def show_own(page: Page) -> None:
    """The folder, its files each with its text behind a button, or an example where it is empty."""
    texts, files = page.texts, policy_files()
    st.caption(texts("tiers.own_what"))
    st.code(str(policies_folder()), language=None)
    if not files:
        st.caption(texts("tiers.own_none"))
        if EXAMPLE.exists():  # not where only the packages are installed
            st.code(EXAMPLE.read_text(), language="python", height=320)
    for path in files:
        _file(page, path)
    if len(files) == MOST_FILES:
        st.caption(texts("tiers.own_many", n=MOST_FILES))


def _file(page: Page, path: Path) -> None:
    texts, names = page.texts, page.engine.client.own_names.get(path.stem)
    key = "own_again" if names else "own_open"
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        with st.popover(
            texts(f"tiers.{key}", name=path.name), key=f"own_open_{path.stem}",
            disabled=page.locked,
        ):  # fmt: skip
            _confirm(page, path)
        if names:
            st.caption(escape(texts("tiers.own_loaded", names=_told(names))))


def _confirm(page: Page, path: Path) -> None:
    """The text as it will run, and the button that runs it."""
    try:
        text = read_policy(path)
    except WorkbenchError as error:
        st.caption(f":orange[:material/warning: {escape(str(error))}]")
        return
    st.code(text, language="python", height=320)
    st.caption(page.texts("tiers.own_confirm"))
    st.button(
        page.texts("tiers.own_run"), key=f"own_run_{path.stem}", type="primary",
        on_click=load, args=(path.stem, text), disabled=page.locked,
    )  # fmt: skip


def load(name: str, text: str) -> None:
    """Callback: run what was shown."""
    page = current_page()

    def run() -> str:
        names = page.engine.client.load_policy(name, text)
        return page.texts("tiers.own_done", file=f"{name}.py", names=_told(names))

    attempt(page, run)


def _told(names: list[tuple[str, str]]) -> str:
    return ", ".join(name for _, name in names)
