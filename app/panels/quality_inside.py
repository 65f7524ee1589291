"""Inside one report: KL by position, flips, needle, and where the damage lies."""

import pandas as pd
import streamlit as st

from app.panels.page import Page, current_page
from app.panels.quality_jobs import jobs_of, start_job
from app.panels.quality_results import PLOT_CONFIG, chosen_result
from app.quality.figures import (
    heads_figure,
    heat_figure,
    kept_all,
    needle_figure,
    noise_figure,
    position_figure,
)
from app.quality.jobs import Result
from app.text import Texts
from app.text.sentences import escape
from workbench.quality.job_protocol import ProbesLine
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting
from workbench.settings.model import WEIGHT_FORMATS

SPACES = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥"})


def show_inside(page: Page) -> None:
    """Everything about the chosen report; what was not measured has a button."""
    texts, result = page.texts, chosen_result(page)
    if result is None:
        st.caption(texts("quality.choose_help"))
        return
    st.markdown(f"**{escape(texts('quality.inside_of', name=result.report.name))}**")
    if result.probes is None or not result.report.needle:
        _offer(page, result)
    left, right = st.columns(2)
    with left:
        _title(texts, "kl_by_position", f"n {result.report.num_scored_tokens:,}")
        _chart(position_figure(texts, result.report), "position", texts("quality.kl_by_position"))
    with right:
        _title(texts, "flips", f"{result.report.num_flips}")
        _flips(texts, result)
    if result.report.needle:
        _title(texts, "needle_title", texts("quality.needle_basis", seed=result.report.seed))
        _chart(needle_figure(texts, result.report), "needle", texts("quality.needle_title"))
    if result.probes is not None:
        _probes(texts, result.probes)


def _offer(page: Page, result: Result) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            page.texts("quality.look_inside"), key="quality_inside", on_click=look_inside,
            disabled=page.locked or jobs_of(page).status.running,
        )  # fmt: skip
        st.caption(page.texts("quality.look_inside_help"))


def look_inside() -> None:
    """Callback: the chosen setting once more, with needle and heat maps."""
    page = current_page()
    result = chosen_result(page)
    if result is not None:
        setting = Setting(name=result.report.name, changes=result.report.changes)
        start_job(page, [setting], same_plan(result), "inside", probes=True, same_text=result)


def same_plan(result: Result) -> QualityPlan:
    """The text on which a report was measured, so that its point stays comparable; and needles."""
    report = result.report
    return QualityPlan(
        context=report.context,
        scored=len(report.kl_by_offset),
        num_windows=report.num_windows,
        seed=report.seed,
        weight_format=_weights(result),
        needle=True,
    )


def _weights(result: Result) -> str:
    """Weight format of a report, as a plan names it."""
    return result.weight_format if result.weight_format in WEIGHT_FORMATS else "bf16"


def _title(texts: Texts, key: str, basis: str) -> None:
    st.markdown(
        f"{texts('quality.' + key)} :small[:gray[{escape(basis)}]]",
        help=texts(f"quality.{key}_help"),
    )


def _chart(figure: object, name: str, alt: str) -> None:
    st.plotly_chart(figure, key=f"quality_{name}", config=PLOT_CONFIG, alt=alt)


def _flips(texts: Texts, result: Result) -> None:
    rows = [
        {
            "position": flip.position,
            "window": flip.window + 1,
            "full": flip.full.translate(SPACES),
            "ours": flip.ours.translate(SPACES),
            "text": flip.text.translate(SPACES),
        }
        for flip in result.report.flips
    ]
    if not rows:
        st.caption(texts("quality.no_flips"))
        return
    names = ("window", "position", "full", "ours", "text")
    columns = {name: texts(f"quality.flip.{name}") for name in names}
    st.dataframe(
        pd.DataFrame(rows, columns=list(names)), hide_index=True, row_height=28,
        height=260 if len(rows) > 7 else "content",
        column_config={name: st.column_config.Column(text) for name, text in columns.items()},
        key="quality_flips", alt=texts("quality.flips"),
    )  # fmt: skip


def _probes(texts: Texts, probes: ProbesLine) -> None:
    basis = texts("quality.probe_basis", n=probes.num_positions)
    left, right = st.columns(2)
    with left:
        _title(texts, "output_error", basis)
        _chart(
            heat_figure(
                probes.output_error, texts("quality.axis_head"), texts("quality.axis_layer"),
                texts("quality.hover_error"),
            ),
            "error", texts("quality.output_error"),
        )  # fmt: skip
    with right:
        _title(texts, "kept_mass", basis)
        if kept_all(probes):
            st.caption(texts("quality.kept_all"))
        else:
            _chart(
                heat_figure(
                    probes.kept_mass, texts("quality.axis_kv_head"), texts("quality.axis_layer"),
                    texts("quality.hover_mass"), 1.0,
                ),
                "mass", texts("quality.kept_mass"),
            )  # fmt: skip
        _title(texts, "noise", basis)
        _chart(noise_figure(texts, probes), "noise", texts("quality.noise"))


def show_heads(page: Page) -> None:
    """Grouped heads as the compression that they are."""
    texts, model = page.texts, jobs_of(page).model
    if model is None:
        st.caption(texts("quality.heads_later"))
        return
    st.markdown(f"**{texts('quality.heads')}**", help=texts("quality.heads_help"))
    _chart(heads_figure(texts, model), "heads", texts("quality.heads"))
    st.caption(
        escape(texts("quality.heads_basis", model=model.name, dim=model.head_dim,
                     heads=model.num_heads, kv=model.num_kv_heads, layers=model.num_layers))
    )  # fmt: skip
