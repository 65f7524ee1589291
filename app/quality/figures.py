"""Figures of one report: KL by position, needle, heat maps, noise; and what grouped heads save."""

import math
from typing import Any

import plotly.graph_objects as go

from app.text import Texts
from workbench.model.attention_shapes import latent_shape
from workbench.quality.job_protocol import ModelLine, ProbesLine
from workbench.quality.results import QualityReport

BLUE, ORANGE = "#0072B2", "#E69F00"  # Okabe-Ito
HUE = [[0.0, "rgba(86, 180, 233, .08)"], [0.5, "rgba(60, 140, 214, .6)"], [1.0, "#2f7fd0"]]
BLIND_NATS = -math.log(90_000)  # a blind guess among the five-digit keys
NO_NOISE_DB = 200.0
KEPT_ALL = 0.999995
BF16_BYTES = 2


def _layout(figure: go.Figure, x: str, y: str, height: int = 260, **more: Any) -> go.Figure:
    figure.update_layout(
        height=height,
        margin={"l": 56, "r": 12, "t": 28, "b": 40},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "font": {"size": 11}},
        dragmode=False,
        xaxis={"title": x, "zeroline": False},
        yaxis={"title": y, "zeroline": False},
        **more,
    )
    return figure


def position_figure(texts: Texts, report: QualityReport) -> go.Figure:
    """KL of each scored position, mean over windows; flips stand as marks on the axis."""
    figure = go.Figure()
    places = list(range(len(report.kl_by_offset)))
    figure.add_scatter(
        x=places, y=report.kl_by_offset, mode="lines", line={"color": BLUE, "width": 1},
        name=texts("quality.kl_by_position"), hovertemplate=texts("quality.hover_position"),
    )  # fmt: skip
    first = report.context - 1
    flips = sorted({flip.position - first for flip in report.flips})
    figure.add_scatter(
        x=flips, y=[0.0] * len(flips), mode="markers", name=texts("quality.flips"),
        marker={"symbol": "line-ns-open", "size": 9, "color": ORANGE, "line": {"width": 2}},
        hovertemplate=texts("quality.hover_flip"),
    )  # fmt: skip
    return _layout(figure, texts("quality.axis_position"), texts("quality.axis_kl"))


def needle_figure(texts: Texts, report: QualityReport) -> go.Figure:
    """Log-probability of the hidden key at five depths, full cache beside the setting."""
    depths = [f"{100 * item.depth:.0f} %" for item in report.needle]
    figure = go.Figure()
    for name, values, exact, colour, pattern in (
        (texts("quality.full"), [item.logprob_full for item in report.needle],
         [item.exact_full for item in report.needle], BLUE, ""),
        (report.name, [item.logprob for item in report.needle],
         [item.exact for item in report.needle], ORANGE, "/"),
    ):  # fmt: skip
        found = [texts("quality.found" if hit else "quality.not_found") for hit in exact]
        figure.add_bar(
            x=depths, y=values, name=name, marker={"color": colour, "pattern": {"shape": pattern}},
            customdata=found, hovertemplate=texts("quality.hover_needle"),
        )  # fmt: skip
    figure.add_hline(y=BLIND_NATS, line={"color": "rgba(128,128,128,.8)", "dash": "dot"},
                     annotation_text=texts("quality.blind"), annotation_font_size=11)  # fmt: skip
    _layout(figure, texts("quality.axis_depth"), texts("quality.axis_needle"), barmode="group")
    figure.update_xaxes(type="category")
    return figure


def heat_figure(
    values: list[list[float]], x: str, y: str, hover: str, top: float | None = None
) -> go.Figure:
    """Layers from top to bottom, heads from left to right, one hue; without `top` from 0 up."""
    flat = [value for row in values for value in row]
    low, high = (0.0, max(flat)) if top is None else (min(flat), top)
    figure = go.Figure(
        go.Heatmap(
            z=values, colorscale=HUE, zmin=low, zmax=high, hovertemplate=hover,
            xgap=1, ygap=1, colorbar={"thickness": 10, "tickfont": {"size": 10}},
        )
    )  # fmt: skip
    _layout(figure, x, y, height=max(220, 90 + 9 * len(values)))
    figure.update_yaxes(autorange="reversed", showgrid=False, dtick=_every(len(values)))
    figure.update_xaxes(dtick=1, showgrid=False)
    return figure


def kept_all(probes: ProbesLine) -> bool:
    """Whether nothing was evicted, so that a map of kept mass would say nothing."""
    return min(min(row) for row in probes.kept_mass) > KEPT_ALL


def noise_figure(texts: Texts, probes: ProbesLine) -> go.Figure:
    """Signal to noise of stored K and V by layer, in dB."""
    figure = go.Figure()
    for name, values, colour, dash, symbol in (
        ("K", probes.k_snr_db, BLUE, "solid", "circle"),
        ("V", probes.v_snr_db, ORANGE, "dash", "diamond"),
    ):
        figure.add_scatter(
            x=list(range(len(values))), y=values, name=name, mode="lines+markers",
            line={"color": colour, "dash": dash}, marker={"symbol": symbol, "size": 6},
            hovertemplate=texts("quality.hover_noise"),
        )  # fmt: skip
    _layout(figure, texts("quality.axis_layer"), texts("quality.axis_noise"))
    figure.update_xaxes(dtick=_every(len(probes.k_snr_db)))
    return figure


def _every(num_layers: int) -> int:
    """Layers between two labels."""
    return 1 if num_layers <= 10 else 5


def head_counts(model: ModelLine) -> list[int]:
    """One shared KV head, the model's own number, and one for each query head."""
    return sorted({1, model.num_kv_heads, model.num_heads})


def heads_bytes(model: ModelLine, num_kv_heads: int) -> int:
    """bf16 bytes of K and V for one token in one layer with so many KV heads."""
    return 2 * num_kv_heads * model.head_dim * BF16_BYTES


def heads_figure(texts: Texts, model: ModelLine) -> go.Figure:
    """Bytes per token of one layer with 1, the model's own and all KV heads, and with a latent."""
    counts = head_counts(model)
    latent = latent_shape(model.head_dim)
    sizes = [*(heads_bytes(model, count) for count in counts), latent.bytes_per_token]
    most = heads_bytes(model, model.num_heads)
    own = [*(count == model.num_kv_heads for count in counts), False]
    names = [
        texts("quality.kv_heads_own" if mine else "quality.kv_heads", n=count)
        for count, mine in zip(counts, own[:-1], strict=True)
    ]
    latent_name = texts("quality.kv_latent", n=latent.latent_dim, rope=latent.rope_dim)
    figure = go.Figure(
        go.Bar(
            y=[*names, latent_name],
            x=sizes, orientation="h", textposition="outside", cliponaxis=False,
            marker={"color": [BLUE if mine else "rgba(128,128,128,.45)" for mine in own]},
            text=[texts("quality.kv_heads_text", size=f"{size:,}", ratio=f"{most / size:.3g}")
                  if size < most else f"{size:,} B" for size in sizes],
            hoverinfo="skip",
        )
    )  # fmt: skip
    _layout(figure, texts("quality.axis_layer_bytes"), "", height=235)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[0, 1.35 * most])
    figure.update_layout(margin={"l": 150, "r": 12, "t": 8, "b": 40})
    return figure
