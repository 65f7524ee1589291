"""A text of the user's: the file that every measurement of the page reads while it is given."""

from typing import Any

import streamlit as st

from app.panels.act import sentence
from app.panels.page import Page, held
from app.quality.own_text import OwnText, read_text
from app.text.sentences import escape
from workbench.errors import WorkbenchError

TEXT_KEY = "quality_text"


def show_text(page: Page) -> None:
    """Where the file is given; what it holds, or why it cannot be read, below it."""
    texts = page.texts
    with st.expander(texts("quality.own_text"), key="quality_text_more"):
        st.file_uploader(
            texts("quality.own_text"), type=["txt", "md"], key=TEXT_KEY, max_upload_size=1,
            help=texts("quality.own_text_help"), label_visibility="collapsed",
            disabled=page.locked,
        )  # fmt: skip
        try:
            own = given_text()
        except WorkbenchError as error:
            st.markdown(f":orange[{escape(sentence(str(error)))}]")
            return
        if own is not None:
            st.caption(escape(texts("quality.own_text_ok", name=own.label, n=f"{len(own.text):,}")))


def given_text() -> OwnText | None:
    """The user's text, None without one; RequestError says what is wrong with it."""
    file: Any = held(TEXT_KEY)
    return None if file is None else read_text(file.name, file.getvalue())
