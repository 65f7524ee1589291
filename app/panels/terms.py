"""The words of the picture, each in two sentences with the notebook that shows it."""

import streamlit as st

from app.panels.page import Page

NOTEBOOK_URL = "http://localhost:8888/lab/tree/01_paged_cache.ipynb"
TERMS = (
    "G1", "G2", "G3", "block", "slab", "refs", "hash", "hit_rate", "mass", "ttft_p50", "itl_p50",
    "watermark", "preemption", "recompute_tax", "waste", "kept_mass", "shadow",
)  # fmt: skip


def show_terms(page: Page) -> None:
    """One popover with every word; over the picture each is a hover or a focus away."""
    texts = page.texts
    with st.popover(texts("button.help"), key="terms"):
        for term in TERMS:
            st.markdown(
                f"**{texts(f'word.{term}')}** {texts(f'term.{term}')} "
                f"[{texts('terms.notebook')}]({NOTEBOOK_URL})"
            )
        st.caption(texts("terms.notebook_hint"))
