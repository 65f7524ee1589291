"""Plotly figures of the page *Tiers*: where bytes went. Costs: `cost_figures.py`."""

from collections.abc import Sequence

import plotly.graph_objects as go

from app.text import Texts
from workbench.tier_views import BlockMove, OverlapView, TiersReport

GREY = "rgba(128, 128, 128, .9)"
# Okabe-Ito, with a dash and a shape of its own a tier, because colour alone tells too little.
LOOKS = {
    "G1": ("#56B4E9", "solid", "circle"),
    "G2": ("#0072B2", "solid", "square"),
    "G3": ("#E69F00", "dash", "diamond"),
    "G3.5": ("#009E73", "dot", "triangle-up"),
    "G4": ("#CC79A7", "dashdot", "cross"),
}
SIGNS = {"entered": "circle", "stored": "triangle-down", "fetched": "triangle-up", "left": "x",
         "fault": "star"}  # fmt: skip
HEIGHT_PX = 340
PLOT_PX = HEIGHT_PX - 40  # without its margins
PAD_PX = 18  # between nodes of a flow


def flow_figure(texts: Texts, report: TiersReport) -> go.Figure | None:
    """Bytes per second from tier to tier just now; None while nothing moves.

    Senders on the left, receivers on the right, each side from the fastest tier down.
    """
    names = ["G1", *(tier.name for tier in report.tiers if tier.enabled)]
    flows = [
        flow for flow in report.flows if flow.bytes_per_s and {flow.source, flow.to} <= {*names}
    ]
    if not flows:
        return None
    senders = [name for name in names if any(flow.source == name for flow in flows)]
    takers = [name for name in names if any(flow.to == name for flow in flows)]
    sent = [sum(f.bytes_per_s for f in flows if f.source == name) for name in senders]
    taken = [sum(f.bytes_per_s for f in flows if f.to == name) for name in takers]
    most = max(len(senders), len(takers))
    figure = go.Figure(
        go.Sankey(
            arrangement="snap",
            node={
                "label": [texts("tiers.from", tier=n) for n in senders]
                + [texts("tiers.to", tier=n) for n in takers],
                "color": [LOOKS[name][0] for name in senders + takers],
                "x": [0.01] * len(senders) + [0.99] * len(takers),
                "y": _heights(sent, most) + _heights(taken, most),
                "pad": PAD_PX, "thickness": 14,
                "hovertemplate": "%{label}: %{value:,.2f} MiB/s<extra></extra>",
            },
            link={
                "source": [senders.index(flow.source) for flow in flows],
                "target": [len(senders) + takers.index(flow.to) for flow in flows],
                "value": [flow.bytes_per_s / 2**20 for flow in flows],
                "color": [_faint(LOOKS[flow.source][0]) for flow in flows],
                "customdata": [
                    texts("tiers.flow_hover", source=flow.source, to=flow.to,
                          total=f"{flow.num_bytes / 2**20:,.1f}")
                    for flow in flows
                ],
                "hovertemplate": "%{value:,.2f} MiB/s, %{customdata}<extra></extra>",
            },
        )
    )  # fmt: skip
    return laid_out(figure)


def _heights(rates: Sequence[float], most: int) -> list[float]:
    """Middles of one side's nodes, 0 above to 1 below, the fastest tier above.

    `most`: nodes of the longer side, which leave the rest of the height to the bytes.
    """
    free = 1.0 - (most - 1) * PAD_PX / PLOT_PX
    before = [sum(rates[:at]) for at in range(len(rates))]
    return [
        (start + rate / 2) / sum(rates) * free + at * PAD_PX / PLOT_PX
        for at, (start, rate) in enumerate(zip(before, rates, strict=True))
    ]


def journey_figure(texts: Texts, moves: Sequence[BlockMove], names: Sequence[str]) -> go.Figure:
    """One block's moves over time, a line a tier; `names` are the tiers, fastest first."""
    start_s = moves[0].time_s if moves else 0.0
    figure = go.Figure()
    figure.add_scatter(
        x=[move.time_s - start_s for move in moves], y=[move.tier for move in moves], mode="lines",
        line={"color": GREY, "width": 1.5, "shape": "hv"}, hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    for what, sign in SIGNS.items():
        some = [move for move in moves if move.what == what]
        if some:
            figure.add_scatter(
                x=[move.time_s - start_s for move in some], y=[move.tier for move in some],
                mode="markers", name=texts(f"tiers.move.{what}"),
                marker={"symbol": sign, "size": 12, "color": [LOOKS[m.tier][0] for m in some],
                        "line": {"width": 1, "color": GREY}},
                customdata=[[f"{m.step}", m.request_id, m.detail] for m in some],
                hovertemplate="%{x:.2f} s, %{customdata[0]} %{customdata[1]} %{customdata[2]}",
            )  # fmt: skip
    figure.update_xaxes(title=texts("tiers.journey_time"), rangemode="tozero")
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=list(names)[::-1])
    return laid_out(figure, height=240)


def overlap_figure(texts: Texts, overlap: OverlapView) -> go.Figure:
    """Transfers, waiting and computing of one step, a row each, by groups of layers."""
    tiers = list(dict.fromkeys(s.row for s in overlap.spans if s.row in LOOKS))
    rows = [*tiers, "wait", "compute"]
    names = {row: row if row in LOOKS else texts(f"tiers.overlap.{row}") for row in rows}
    figure = go.Figure()
    for row in rows:
        spans = [span for span in overlap.spans if span.row == row]
        colour = LOOKS[row][0] if row in LOOKS else GREY if row == "wait" else LOOKS["G1"][0]
        figure.add_bar(
            y=[names[row]] * len(spans), base=[span.start_ms for span in spans], orientation="h",
            x=[span.end_ms - span.start_ms for span in spans], showlegend=False,
            marker={"color": colour, "line": {"width": 1, "color": GREY},
                    "pattern": {"shape": "/" if row == "wait" else ""}},
            customdata=[
                texts("tiers.overlap_layers", first=span.first, last=span.last) for span in spans
            ],
            hovertemplate="%{customdata}: %{base:.1f} + %{x:.1f} ms<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title=texts("tiers.overlap_time"), rangemode="tozero")
    figure.update_yaxes(type="category", categoryarray=[names[row] for row in rows][::-1])
    figure.update_layout(barmode="overlay")
    return laid_out(figure, height=90 + 44 * len(rows))


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, .35)"


def laid_out(figure: go.Figure, height: int = HEIGHT_PX) -> go.Figure:
    """The look that all pictures of the page share."""
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        legend={"orientation": "h", "y": 1.05, "x": 0, "yanchor": "bottom"},
        font={"size": 12},
    )
    return figure
