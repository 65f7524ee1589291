"""What of a load by layers hid behind computing, as a Gantt strip of the newest such step."""

import streamlit as st

from app.panels.page import Page
from app.panels.tiers_worth import PLOT_CONFIG
from app.text.sentences import escape
from app.tiers.figures import overlap_figure
from workbench.tier_views import TiersReport


def show_overlap(page: Page, report: TiersReport) -> None:
    """The strip, and its sums in a sentence; how to get one where there is none."""
    texts, overlap = page.texts, report.overlap
    if overlap is None:
        st.caption(texts("tiers.no_overlap"))
        return
    st.plotly_chart(
        overlap_figure(texts, overlap), key="tiers_overlap", config=PLOT_CONFIG,
        alt=texts("tiers.overlap_alt"),
    )  # fmt: skip
    line = texts(
        "tiers.overlap_line",
        who=", ".join(overlap.request_ids),
        transfer=f"{overlap.transfer_ms:,.1f}",
        wait=f"{overlap.wait_ms:,.1f}",
        compute=f"{overlap.compute_ms:,.1f}",
        hidden=f"{100 * overlap.hidden:.0f}",
    )
    st.caption(escape(line))
    st.caption(texts("tiers.overlap_basis"))
