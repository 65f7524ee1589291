"""KL over real bytes per token: the frontier, and the plot with a shape and a word per family."""

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app.quality.jobs import Result
from app.quality.settings import family_of
from app.text import Texts

# Okabe-Ito; each family has a shape of its own, because colour alone tells too little.
LOOKS = {
    "full": ("circle", "#56B4E9"),
    "fp8": ("square", "#0072B2"),
    "int": ("diamond", "#E69F00"),
    "rotated": ("triangle-up", "#009E73"),
    "block": ("cross", "#F0E442"),
    "kivi": ("star", "#D55E00"),
    "kvquant": ("triangle-down", "#D55E00"),
    "low_rank": ("diamond-tall", "#009E73"),
    "mixed": ("hexagon", "#CC79A7"),
    "retention": ("x", "#CC79A7"),
    "sparse": ("triangle-left", "#E69F00"),
    "other": ("pentagon", "#999999"),
}
GREY = "rgba(128, 128, 128, .8)"
HEIGHT_PX = 430
PLOT_PX = (480, 290)  # for which labels are placed
LETTER_PX, LINE_PX, GAP_PX = 6.8, 14, 8
EXACT_DECADES = 0.5  # how far below the smallest KL an exact setting is drawn


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of points (bytes, KL) that no other beats in both, by bytes."""
    order = sorted(range(len(points)), key=lambda index: points[index])
    best, chosen = math.inf, []
    for index in order:
        if points[index][1] < best:
            best = points[index][1]
            chosen.append(index)
    return chosen


def pareto_figure(texts: Texts, results: Sequence[Result], chosen: str) -> go.Figure:
    """The plot; a point's customdata begins with its setting's name."""
    real = [(item.report.bytes.per_token, item.report.kl_mean) for item in results]
    shown = [kl for _, kl in real if kl > 0]
    lowest = min(shown, default=1e-4) * 10**-EXACT_DECADES
    points = [(x, kl if kl > 0 else lowest) for x, kl in real]
    figure = go.Figure()
    line = [points[index] for index in frontier(real)]
    figure.add_scatter(
        x=[x for x, _ in line], y=[y for _, y in line], mode="lines", hoverinfo="skip",
        line={"color": GREY, "width": 1.5, "shape": "hv", "dash": "dot"},
        name=texts("quality.frontier"),
    )  # fmt: skip
    labels = place_labels([item.report.name for item in results], points)
    for family in LOOKS:
        members = [i for i, item in enumerate(results) if family_of(item.report.changes) == family]
        if members:
            figure.add_trace(_family_trace(texts, family, results, points, labels, members))
    _mark_chosen(figure, results, points, chosen)
    if any(kl == 0 for _, kl in real):
        figure.add_hline(y=lowest, line={"color": GREY, "width": 1, "dash": "dash"})
        figure.add_annotation(
            x=0, xref="paper", y=math.log10(lowest), text=texts("quality.exact"), showarrow=False,
            xanchor="left", yanchor="bottom", font={"size": 11},
        )  # fmt: skip
    _axes(figure, texts, points)
    return figure


def _family_trace(
    texts: Texts,
    family: str,
    results: Sequence[Result],
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
    members: Sequence[int],
) -> go.Scatter:
    symbol, colour = LOOKS[family]
    reports = [results[i].report for i in members]
    ys = [points[i][1] for i in members]
    return go.Scatter(
        x=[points[i][0] for i in members],
        y=ys,
        mode="markers+text",
        name=texts(f"quality.family.{family}"),
        marker={"symbol": symbol, "size": 12, "color": colour,
                "line": {"width": 1, "color": GREY}},
        error_y={
            "type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": GREY,
            "array": [_bar(r.kl_high, y) for r, y in zip(reports, ys, strict=True)],
            "arrayminus": [_bar(y, r.kl_low and max(r.kl_low, y / 30))
                           for r, y in zip(reports, ys, strict=True)],
        },
        text=[results[i].report.name if labels[i] else "" for i in members],
        textposition=[labels[i] or "top center" for i in members],
        textfont={"size": 11},
        customdata=[hover_values(texts, results[i]) for i in members],
        hovertemplate=texts("quality.hover") + "<extra></extra>",
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}, "textfont": {"color": None}},
        cliponaxis=False,
    )  # fmt: skip


def _bar(high: float | None, low: float | None) -> float:
    """Length of an error bar; 0 where there is no interval, or none on a log axis."""
    return max(0.0, high - low) if high and low else 0.0


def hover_values(texts: Texts, result: Result) -> list[Any]:
    """What a point's hover text is filled with; the name is the first."""
    report = result.report
    return [
        report.name, report.kl_mean, report.kl_p99, 100 * report.top1, report.bytes.per_token,
        report.bytes.bits_per_element, report.bytes.ratio_to_bf16, report.num_scored_tokens,
        report.perplexity_full, report.perplexity,
    ]  # fmt: skip


def _mark_chosen(
    figure: go.Figure,
    results: Sequence[Result],
    points: Sequence[tuple[float, float]],
    chosen: str,
) -> None:
    at = [point for item, point in zip(results, points, strict=True) if item.report.name == chosen]
    figure.add_scatter(
        x=[x for x, _ in at], y=[y for _, y in at], mode="markers", hoverinfo="skip",
        showlegend=False, marker={"symbol": "circle-open", "size": 22, "color": GREY,
                                  "line": {"width": 2}},
    )  # fmt: skip


def _axes(figure: go.Figure, texts: Texts, points: Sequence[tuple[float, float]]) -> None:
    left, right = _span([x for x, _ in points])
    low, high = _span([y for _, y in points])
    figure.update_layout(
        height=HEIGHT_PX,
        margin={"l": 64, "r": 16, "t": 8, "b": 44},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 11}},
        hoverlabel={"align": "left"},
        clickmode="event+select",
        dragmode=False,
        xaxis={"title": texts("quality.axis_bytes"), "type": "log", "range": [left, right],
               "dtick": "D2", "zeroline": False, "tickformat": ","},
        yaxis={"title": texts("quality.axis_kl"), "type": "log", "range": [low, high],
               "exponentformat": "power", "dtick": 1, "zeroline": False},
    )  # fmt: skip


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Decades from below the smallest value to above the largest."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.08, 0.07 * (high - low))
    return low - margin, high + margin


def place_labels(names: Sequence[str], points: Sequence[tuple[float, float]]) -> list[str]:
    """Where each name stands beside its point, or "" where it would lie over another."""
    if not points:
        return []
    left, right = _span([x for x, _ in points])
    low, high = _span([y for _, y in points])
    width, height = PLOT_PX
    at = [
        ((math.log10(x) - left) / (right - left) * width,
         (high - math.log10(y)) / (high - low) * height)
        for x, y in points
    ]  # fmt: skip
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in at]
    placed = [""] * len(names)
    first = frontier(points)  # what is worth a word most
    for index in [*first, *(i for i in range(len(names)) if i not in first)]:
        name, (x, y) = names[index], at[index]
        size = len(name) * LETTER_PX
        at_right, at_left = (x + GAP_PX, x + GAP_PX + size), (x - GAP_PX - size, x - GAP_PX)
        above, below = (y - GAP_PX - LINE_PX / 2, y - 2), (y + 2, y + GAP_PX + LINE_PX / 2)
        beside = (y - LINE_PX / 2, y + LINE_PX / 2)
        # The frontier comes from above and goes to the right: the corners between are free.
        boxes: dict[str, Box] = {
            f"{row} {side}": (span[0], rows[0], span[1], rows[1])
            for row, rows, side, span in (
                ("top", above, "right", at_right), ("bottom", below, "left", at_left),
                ("middle", beside, "left", at_left), ("bottom", below, "right", at_right),
                ("top", above, "left", at_left), ("middle", beside, "right", at_right),
            )
        }  # fmt: skip
        place = next(
            (key for key, box in boxes.items()
             if box[0] >= 0 and box[2] <= width + 8 and not any(_overlap(box, b) for b in taken)),
            "",
        )  # fmt: skip
        if place:
            taken.append(boxes[place])
        placed[index] = place
    return placed


Box = tuple[float, float, float, float]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
