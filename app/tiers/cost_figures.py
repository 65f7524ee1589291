"""Plotly figures of what the tiers cost, from what the engine measured.

One transfer of n tokens takes latency + n * bytes a token * (1 / bandwidth + 1 / copy); computing
them takes n * seconds a token. The two cross at

    n = latency / (seconds a token - bytes a token / bandwidth - bytes a token / copy)

and nowhere if that is not positive: then the tier is too slow at any size.
"""

import math

import numpy as np
import plotly.graph_objects as go

from app.text import Texts
from app.tiers.figures import GREY, LOOKS, laid_out
from workbench.tier_views import TierReport, TiersReport

FEWEST_BLOCKS, MOST_DOUBLINGS = 1, 9
MOST_TIMES = 300.0  # the crossover is drawn up to so many times the bandwidth that is needed
SIZES = {4 << 10: "4 KiB", 16 << 10: "16", 64 << 10: "64", 256 << 10: "256", 1 << 20: "1 MiB",
         4 << 20: "4"}  # fmt: skip


def fetch_seconds(report: TiersReport, tier: TierReport, num_blocks: int) -> float:
    """Predicted seconds to fetch so many blocks, as the gate reckons: latency, bytes, copy."""
    if not tier.load.bytes_per_s:
        return 0.0
    size = num_blocks * report.block_bytes
    copy_s = size / report.copy_bytes_per_s if report.copy_bytes_per_s else 0.0
    num_latencies = -(-num_blocks // tier.at_once)
    return num_latencies * tier.load.latency_s + size / tier.load.bytes_per_s + copy_s


def measured(report: TiersReport) -> list[TierReport]:
    """Tiers that are on and from which something was fetched, if only to probe them."""
    return [tier for tier in report.tiers if tier.enabled and tier.load.bytes_per_s]


def cost_figure(texts: Texts, report: TiersReport) -> go.Figure:
    """Seconds of fetching and of computing again over tokens, both axes logarithmic."""
    blocks = [FEWEST_BLOCKS * 2**power for power in range(MOST_DOUBLINGS)]
    tokens = [count * report.block_tokens for count in blocks]
    figure = go.Figure()
    if report.recompute_s_per_token:
        figure.add_scatter(
            x=tokens, y=[report.recompute_s_per_token * n for n in tokens], mode="lines",
            line={"color": GREY, "width": 3}, name=texts("tiers.recompute"),
        )  # fmt: skip
    for tier in measured(report):
        colour, dash, shape = LOOKS[tier.name]
        figure.add_scatter(
            x=tokens, y=[fetch_seconds(report, tier, n) for n in blocks], mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2}, marker={"symbol": shape, "size": 8},
            name=texts("tiers.fetch_from", tier=tier.name, source=tier.provenance),
        )  # fmt: skip
    figure.update_xaxes(title=texts("tiers.tokens"), type="log", tickvals=tokens,
                        ticktext=[f"{n:,}" for n in tokens])  # fmt: skip
    figure.update_yaxes(title=texts("tiers.seconds"), type="log", exponentformat="SI")
    return laid_out(figure)


# ---- bandwidth by size


def probed(report: TiersReport) -> list[TierReport]:
    """Tiers that are on and were measured when they opened, by a clock that moved."""
    return [
        tier
        for tier in report.tiers
        if tier.enabled and any(size.load_s > 0 and size.store_s > 0 for size in tier.sizes)
    ]


def bandwidth_figure(texts: Texts, report: TiersReport) -> go.Figure:
    """MB/s over the size of a transfer, both logarithmic: up filled, down hollow and thin."""
    figure = go.Figure()
    for tier in probed(report):
        colour, dash, shape = LOOKS[tier.name]
        sizes = [size for size in tier.sizes if size.load_s > 0 and size.store_s > 0]
        for way, symbol, width in (("load_s", shape, 2), ("store_s", f"{shape}-open", 1)):
            figure.add_scatter(
                x=[size.num_bytes for size in sizes],
                y=[size.num_bytes / getattr(size, way) / 1e6 for size in sizes],
                customdata=[[getattr(size, way) * 1e3, size.num_tries] for size in sizes],
                mode="lines+markers", name=texts(f"tiers.way.{way}", tier=tier.name),
                line={"color": colour, "dash": dash, "width": width},
                marker={"symbol": symbol, "size": 9},
                hovertemplate=texts("tiers.bandwidth_hover"),
            )  # fmt: skip
    figure.update_xaxes(title=texts("tiers.size"), type="log", tickvals=list(SIZES),
                        ticktext=list(SIZES.values()))  # fmt: skip
    figure.update_yaxes(title=texts("tiers.rate"), type="log", dtick=1)
    return laid_out(figure)


# ---- where the two ways cross


def needed_bytes_per_s(report: TiersReport) -> float:
    """The bandwidth below which no fetch pays, however large; 0 while nothing was computed.

    Infinite where copying into pages alone takes longer than computing.
    """
    if not report.recompute_s_per_token or not report.block_bytes:
        return 0.0
    token_bytes = report.block_bytes / report.block_tokens
    copy_s = token_bytes / report.copy_bytes_per_s if report.copy_bytes_per_s else 0.0
    left_s = report.recompute_s_per_token - copy_s
    return token_bytes / left_s if left_s > 0 else math.inf


def crossover_tokens(report: TiersReport, tier: TierReport, bytes_per_s: float) -> float:
    """From how many tokens on one transfer beats computing them, at a bandwidth of this tier.

    Infinite where it never does.
    """
    needed = needed_bytes_per_s(report)
    if bytes_per_s <= needed or not needed:
        return math.inf
    token_bytes = report.block_bytes / report.block_tokens
    return tier.load.latency_s / (token_bytes / needed - token_bytes / bytes_per_s)


def crossover_figure(texts: Texts, report: TiersReport) -> go.Figure:
    """Tokens at the crossing over the bandwidth, a curve a tier with a mark where it is now."""
    needed = needed_bytes_per_s(report)
    fastest = max([MOST_TIMES * needed, *(2 * t.load.bytes_per_s for t in measured(report))])
    rates = needed * (1 + np.geomspace(1e-3, fastest / needed, 80))
    figure = go.Figure()
    for tier in measured(report):
        if tier.load.latency_s <= 0:
            continue  # any number of tokens pays
        colour, dash, shape = LOOKS[tier.name]
        figure.add_scatter(
            x=rates / 1e6, y=[crossover_tokens(report, tier, rate) for rate in rates], mode="lines",
            line={"color": colour, "dash": dash, "width": 2}, hoverinfo="skip", showlegend=False,
        )  # fmt: skip
        now = crossover_tokens(report, tier, tier.load.bytes_per_s)
        if now < math.inf:
            figure.add_scatter(
                x=[tier.load.bytes_per_s / 1e6], y=[now], mode="markers",
                marker={"symbol": shape, "size": 12, "color": colour},
                name=texts("tiers.fetch_from", tier=tier.name, source=tier.provenance),
                hovertemplate=texts("tiers.crossover_hover"),
            )  # fmt: skip
    figure.add_scatter(
        x=[needed / 1e6, fastest / 1e6], y=[report.block_tokens] * 2, mode="lines",
        line={"color": GREY, "width": 1}, hoverinfo="skip", name=texts("tiers.one_block"),
    )  # fmt: skip
    figure.add_vline(x=needed / 1e6, line={"color": GREY, "dash": "dot"})
    figure.update_xaxes(title=texts("tiers.rate"), type="log", dtick=1)
    figure.update_yaxes(title=texts("tiers.crossing"), type="log", dtick=1)
    return laid_out(figure)
