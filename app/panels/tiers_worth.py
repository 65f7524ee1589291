"""What the tiers were worth: hits, seconds of fetching against seconds of computing again."""

from typing import Any

import msgspec
import pandas as pd
import streamlit as st

from app.panels.page import Page, open_page
from app.tiers.figures import HEIGHT_PX, flow_figure
from workbench.errors import WorkbenchError
from workbench.tier_views import TierReport, TiersReport

REFRESH_S = 3.0
PLOT_CONFIG = {"displayModeBar": False, "scrollZoom": False}


def tiers_of(page: Page) -> TiersReport | None:
    """The engine's report; None while it cannot answer."""
    if not page.ready:
        return None
    try:
        return page.engine.client.tiers()
    except WorkbenchError:
        return None  # it ended meanwhile, which the page's own face tells


def show_worth() -> None:
    """The table, drawn anew every few seconds; its rows and columns stay where they are."""
    st.fragment(_worth, run_every=REFRESH_S, key="tiers_worth")()


def _worth() -> None:
    page = open_page()
    texts, report = page.texts, tiers_of(page)
    if report is None:
        st.caption(texts("tiers.not_yet"))
        return
    rows = [_row(page, tier) for tier in report.tiers]
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        row_height=28,
        alt=texts("tiers.worth_alt"),
        column_config={  # as wide as their widest, which comes after the table was laid out
            texts("tiers.column.worth"): st.column_config.TextColumn(width=120),
            texts("tiers.column.ios"): st.column_config.TextColumn(width=150),
        },
    )
    st.caption(_gate_line(page, report))
    for tier in report.tiers:
        if tier.num_refused or tier.slowed_s:
            st.caption(_backlog_line(page, tier))
    for line in _placement_lines(page, report):
        st.caption(line)
    ways = [
        texts("tiers.moved_by", tier=tier.name, medium=tier.medium, way=tier.way)
        for tier in report.tiers
        if tier.enabled and tier.way
    ]
    if ways:
        st.caption(" ".join(ways))
    if report.store is not None:
        told = msgspec.structs.asdict(report.store)
        st.caption(texts("tiers.store_line", **told))


def _row(page: Page, tier: TierReport) -> dict[str, Any]:
    texts, asked = page.texts, tier.hits + tier.misses
    saved_s = tier.recompute_s - tier.fetch_s
    return {
        texts("tiers.column.tier"): f"{tier.name} {tier.medium}",
        texts("tiers.column.on"): texts("choice.on" if tier.enabled else "choice.off"),
        texts("tiers.column.hits"): f"{100 * tier.hits / asked:.0f} %" if asked else "n/a",
        texts("tiers.column.lookups"): asked,
        texts("tiers.column.fetched"): tier.fetched_tokens,
        texts("tiers.column.fetch_ms"): round(tier.fetch_s * 1e3, 1),
        texts("tiers.column.recompute_ms"): round(tier.recompute_s * 1e3, 1),
        texts("tiers.column.worth"): _worth_word(page, tier, saved_s),
        texts("tiers.column.evicted"): tier.num_evictions,
        texts("tiers.column.dropped"): tier.num_dropped,
        texts("tiers.column.held"): _held_word(page, tier),
        texts("tiers.column.faults"): sum(tier.faults.values()),
        texts("tiers.column.ios"): _ios(tier),
        texts("tiers.column.source"): tier.provenance,
    }


def _backlog_line(page: Page, tier: TierReport) -> str:
    return page.texts(
        "tiers.backlog_line",
        tier=tier.name,
        refused=f"{tier.num_refused:,}",
        slowed=f"{tier.slowed_s * 1e3:,.0f}",
        now=f"{tier.backlog_s * 1e3:,.0f}",
    )


def _ios(tier: TierReport) -> str:
    if tier.num_read_ios is None or tier.num_write_ios is None:
        return "n/a"
    return f"{tier.num_read_ios:,} / {tier.num_write_ios:,}"


def _worth_word(page: Page, tier: TierReport, saved_s: float) -> str:
    if not tier.fetched_tokens:
        return page.texts("tiers.nothing_fetched")
    word = "tiers.saved" if saved_s >= 0 else "tiers.lost"
    return page.texts(word, ms=f"{abs(saved_s) * 1e3:,.0f}")


def _held_word(page: Page, tier: TierReport) -> str:
    """Blocks that are pinned or leased, and those that go last."""
    if not tier.num_held and not tier.num_soft:
        return "0"
    return page.texts("tiers.held_word", hard=tier.num_held, soft=tier.num_soft)


def _gate_line(page: Page, report: TiersReport) -> str:
    key = "tiers.gate_on" if report.gate else "tiers.gate_off"
    return page.texts(
        key, gated=report.num_gated, late=report.num_late, failed=report.num_failed_pages
    )


def _placement_lines(page: Page, report: TiersReport) -> list[str]:
    """Where the policy failed, and what was left out: a line each, where there is anything."""
    told, lines = report.placement, []
    if told is not None and told.num_faults:
        lines.append(
            page.texts("tiers.policy_faults", policy=told.policy, n=f"{told.num_faults:,}")
        )
    if told is not None and told.num_left_out:
        counts = {"out": f"{told.num_left_out:,}", "late": f"{told.num_late:,}"}
        lines.append(page.texts("tiers.left_out", **counts))
    return lines


def show_flow() -> None:
    """Bytes from tier to tier, drawn anew every few seconds."""
    st.fragment(_flow, run_every=REFRESH_S, key="tiers_flow_now")()


def _flow() -> None:
    page = open_page()
    texts, report = page.texts, tiers_of(page)
    if report is None or not report.flows:
        st.caption(texts("tiers.no_flow" if report is not None else "tiers.not_yet"))
        return
    window = f"{report.flow_window_s:g}"
    figure = flow_figure(texts, report)
    with st.container(height=HEIGHT_PX + 20, border=False):  # what is below stays where it is
        if figure is None:
            st.caption(texts("tiers.flow_idle", seconds=window))
        else:
            st.plotly_chart(
                figure, key="tiers_flow", config=PLOT_CONFIG,
                alt=texts("tiers.flow_alt", seconds=window),
            )  # fmt: skip
    rows = [
        {
            texts("tiers.column.from"): flow.source,
            texts("tiers.column.to"): flow.to,
            texts("tiers.column.rate"): f"{flow.bytes_per_s / 2**20:,.2f}",
            texts("tiers.column.moved"): f"{flow.num_bytes / 2**20:,.1f}",
        }
        for flow in report.flows
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True, row_height=28)
    st.caption(texts("tiers.flow_basis", seconds=window))
