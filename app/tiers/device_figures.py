"""Plotly figures of placements: bytes handed to collectives, and how even the ranks are."""

from collections.abc import Sequence

import plotly.graph_objects as go

from app.text import Texts
from workbench.lab.devices_protocol import ResultLine

# Okabe-Ito, with a pattern of its own a kind, because colour alone tells too little.
KINDS = {
    "all_reduce": ("#0072B2", ""),
    "all_to_all": ("#E69F00", "/"),
    "all_to_all_counts": ("#009E73", "x"),
    "send": ("#CC79A7", "."),
}
OTHER = ("#999999", "|")
LOADS = {"kv": ("#0072B2", ""), "rows": ("#E69F00", "/"), "experts": ("#009E73", "x")}
HEIGHT_PX = 280


def bytes_figure(texts: Texts, results: Sequence[ResultLine]) -> go.Figure:
    """Bytes a token that all ranks together handed to each kind of collective, measured."""
    names = [texts(f"devices.short.{result.name}") for result in results]
    figure = go.Figure()
    kinds = dict.fromkeys(kind for result in results for kind in result.report.moved_per_token)
    for kind in kinds:
        colour, pattern = KINDS.get(kind, OTHER)
        figure.add_bar(
            x=names, y=[result.report.moved_per_token.get(kind, 0.0) for result in results],
            name=texts.get(f"devices.kind.{kind}", kind),
            marker={"color": colour, "pattern": {"shape": pattern}},
        )  # fmt: skip
    figure.add_scatter(
        x=names, y=[sum(result.report.formula_per_token.values()) for result in results],
        mode="markers", name=texts("devices.formula"),
        marker={"symbol": "line-ew-open", "size": 26, "color": "rgba(128, 128, 128, .95)",
                "line": {"width": 3}},
    )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title=texts("devices.bytes_axis"))
    return _laid_out(figure)


def balance_figure(texts: Texts, results: Sequence[ResultLine]) -> go.Figure:
    """Each rank's load over the mean of its placement's ranks: KV bytes, tokens, expert rows."""
    names: list[str] = []
    shares: dict[str, list[float]] = {load: [] for load in LOADS}
    for result in results:
        ranks = result.report.ranks
        loads = {
            "kv": [float(rank.kv_bytes) for rank in ranks],
            "rows": [float(rank.rows) for rank in ranks],
            "experts": [float(sum(rank.expert_load)) for rank in ranks],
        }
        for at, rank in enumerate(ranks):
            short = texts(f"devices.short.{result.name}")
            names.append(texts("devices.rank", name=short, rank=rank.rank))
            for load, values in loads.items():
                total = sum(values)
                shares[load].append(values[at] * len(values) / total if total else 0.0)
    figure = go.Figure()
    for load, values in shares.items():
        if any(values):
            colour, pattern = LOADS[load]
            figure.add_bar(
                x=names, y=values, name=texts(f"devices.load.{load}"),
                marker={"color": colour, "pattern": {"shape": pattern}},
            )  # fmt: skip
    figure.add_hline(y=1.0, line={"color": "rgba(128, 128, 128, .9)", "dash": "dot"})
    figure.update_layout(barmode="group")
    figure.update_yaxes(title=texts("devices.balance_axis"), rangemode="tozero")
    return _laid_out(figure)


def _laid_out(figure: go.Figure) -> go.Figure:
    figure.update_layout(
        height=HEIGHT_PX,
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        legend={"orientation": "h", "y": 1.18, "x": 0},
        font={"size": 12},
    )
    return figure
