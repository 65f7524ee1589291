"""The words of the picture, each in two sentences with the notebook that shows it."""

import streamlit as st

from app.panels.page import Page

NOTEBOOK = "01_paged_cache.ipynb"
NOTEBOOK_URL = f"http://localhost:8888/lab/tree/{NOTEBOOK}"
TERMS = (
    "G1", "G2", "G3", "block", "refs", "hash", "hit", "mass", "TTFT", "ITL", "slab", "watermark",
    "preemption", "shadow",
)  # fmt: skip


def show_terms(page: Page) -> None:
    """One popover with every word, so that each is a click or a key away."""
    texts = page.texts
    with st.popover(texts("button.help"), key="terms"):
        for term in TERMS:
            st.markdown(
                f"**{texts(f'term.{term}.label')}** {texts(f'term.{term}.text')} "
                f"[{texts('terms.notebook')}]({NOTEBOOK_URL})"
            )
        st.caption(texts("terms.notebook_hint"))
