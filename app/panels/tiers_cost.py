"""What each tier costs as measured, and from which size on fetching beats computing again."""

import math

import streamlit as st

from app.panels.page import Page
from app.panels.tiers_worth import PLOT_CONFIG
from app.tiers.cost_figures import (
    bandwidth_figure,
    cost_figure,
    crossover_figure,
    crossover_tokens,
    fetch_seconds,
    measured,
    needed_bytes_per_s,
    probed,
)
from workbench.tier_views import TierReport, TiersReport

NEVER = float("inf")


def show_cost(page: Page, report: TiersReport) -> None:
    """Three pictures: seconds over tokens, bandwidth over size, and where the two ways cross."""
    texts = page.texts
    if not measured(report):
        st.caption(texts("tiers.no_cost"))
        return
    st.plotly_chart(
        cost_figure(texts, report),
        key="tiers_cost", config=PLOT_CONFIG, alt=texts("tiers.cost_alt"),
    )  # fmt: skip
    for tier in measured(report):
        st.caption(_cost_line(page, report, tier))
    st.caption(texts("tiers.cost_basis"))
    if probed(report):
        _show_bandwidth(page, report)
    _show_crossover(page, report)


def _show_bandwidth(page: Page, report: TiersReport) -> None:
    texts = page.texts
    st.markdown(f"**{texts('tiers.bandwidth')}**")
    st.plotly_chart(
        bandwidth_figure(texts, report),
        key="tiers_bandwidth", config=PLOT_CONFIG, alt=texts("tiers.bandwidth_alt"),
    )  # fmt: skip
    spent_ms = 1e3 * sum(tier.probe_s for tier in probed(report))
    st.caption(texts("tiers.bandwidth_basis", ms=f"{spent_ms:,.0f}"))


def _show_crossover(page: Page, report: TiersReport) -> None:
    texts = page.texts
    st.markdown(f"**{texts('tiers.crossover')}**")
    needed = needed_bytes_per_s(report)
    if not needed:
        st.caption(texts("tiers.crossover_unknown"))
        return
    if needed == NEVER:
        st.caption(texts("tiers.crossover_copy"))
        return
    st.plotly_chart(
        crossover_figure(texts, report),
        key="tiers_crossover", config=PLOT_CONFIG, alt=texts("tiers.crossover_alt"),
    )  # fmt: skip
    for tier in measured(report):
        tokens = crossover_tokens(report, tier, tier.load.bytes_per_s)
        st.caption(_crossover_line(page, tier, tokens, needed))
    st.caption(texts("tiers.crossover_basis"))


def _crossover_line(page: Page, tier: TierReport, tokens: float, needed: float) -> str:
    if tokens == NEVER:
        return page.texts("tiers.crossover_never", tier=tier.name, needed=_rate(needed))
    if tokens <= 1:
        return page.texts("tiers.crossover_any", tier=tier.name)
    return page.texts("tiers.crossover_line", tier=tier.name, tokens=f"{math.ceil(tokens):,}")


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.2f}" if ms >= 0.1 or not ms else f"{ms:.2g}"


def _rate(bytes_per_s: float) -> str:
    mb_s = bytes_per_s / 1e6
    return f"{mb_s:,.0f}" if mb_s >= 10 else f"{mb_s:.2g}"


def _cost_line(page: Page, report: TiersReport, tier: TierReport) -> str:
    return page.texts(
        "tiers.cost_line",
        tier=tier.name,
        latency=_ms(tier.load.latency_s),
        load=f"{tier.load.bytes_per_s / 1e6:,.0f}",
        store=f"{tier.store.bytes_per_s / 1e6:,.0f}",
        n=tier.load.samples,
        source=tier.provenance,
        verdict=_verdict(page, report, tier),
    )


def _verdict(page: Page, report: TiersReport, tier: TierReport) -> str:
    """Which way is faster for one block, and how many times."""
    compute_s = report.recompute_s_per_token * report.block_tokens
    fetch_s = fetch_seconds(report, tier, 1)
    if not compute_s or not fetch_s:
        return page.texts("tiers.verdict_unknown")
    if fetch_s < compute_s:
        return page.texts("tiers.verdict_fetch", factor=f"{compute_s / fetch_s:.1f}")
    return page.texts("tiers.verdict_compute", factor=f"{fetch_s / compute_s:.1f}")
