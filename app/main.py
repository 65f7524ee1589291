"""Router of the dashboard: picks the page and loads the little CSS there is."""

import sys
from pathlib import Path

# `streamlit run app` puts `app/` on the path, not the folder above it.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

import streamlit as st  # noqa: E402
from streamlit.delta_generator_singletons import (  # noqa: E402
    context_dg_stack,
    get_default_dg_stack_value,
)

from app.panels.page import tab_state  # noqa: E402
from app.text import load_texts  # noqa: E402
from app.views.live import show_live  # noqa: E402
from app.views.quality import show_quality  # noqa: E402
from app.views.tiers import show_tiers  # noqa: E402


def main() -> None:
    """Set the page up and run it."""
    # A run that follows a fragment's in the same thread would go on inside the fragment's
    # container, and the next one at a path the browser does not have, which leaves it a white page:
    # Streamlit 1.67 resets the stack only after a run that was interrupted.
    context_dg_stack.set(get_default_dg_stack_value())
    state = tab_state()
    state.language = st.query_params.get("lang", state.language)
    texts = load_texts(state.language)
    st.set_page_config(
        page_title=texts("page.title"),
        page_icon=str(Path(__file__).with_name("icon.svg")),
        layout="wide",
        initial_sidebar_state="collapsed",
    )
    st.html(Path(__file__).parent / "style.css")
    pages = {
        "live": st.Page(show_live, title=texts("page.live"), url_path="", default=True),
        "quality": st.Page(show_quality, title=texts("page.quality"), url_path="quality"),
        "tiers": st.Page(show_tiers, title=texts("page.tiers"), url_path="tiers"),
    }
    chosen = st.navigation(list(pages.values()), position="hidden")
    asked, state.goto = pages.get(state.goto), ""
    if asked is not None and asked.url_path != chosen.url_path:
        st.switch_page(asked)
    chosen.run()


main()
