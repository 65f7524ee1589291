"""What was measured: the plot, the chosen setting with *Apply*, the table, the downloads."""

from typing import Any

import pandas as pd
import streamlit as st

from app.panels.act import apply_changes
from app.panels.page import Page, current_page, held
from app.panels.quality_card import basis, report_rows, rows_html
from app.panels.quality_jobs import jobs_of
from app.quality.files import as_csv, as_json, row_of
from app.quality.jobs import Result
from app.quality.pareto import pareto_figure
from app.quality.settings import changes_to_apply
from app.text.sentences import change_text, escape
from workbench.config import all_settings
from workbench.quality.results import ByteReport

PLOT_KEY, TABLE_KEY, PICK_KEY = "quality_plot", "quality_table", "quality_pick"
PLOT_CONFIG = {"displayModeBar": False, "doubleClick": False, "scrollZoom": False}


def show_plot(page: Page) -> None:
    """KL over bytes; a click on a point chooses its setting."""
    results = jobs_of(page).results()
    st.plotly_chart(
        pareto_figure(page.texts, results, page.state.quality_chosen),
        key=_key(page, PLOT_KEY),
        on_select=point_clicked,
        selection_mode="points",
        config=PLOT_CONFIG,
        alt=page.texts("quality.plot_alt", n=len(results)),
    )
    texts_read = {
        (r.text, r.report.context, r.report.num_windows, r.weight_format) for r in results
    }
    if len(texts_read) > 1:
        st.caption(page.texts("quality.different_texts"))


def _key(page: Page, name: str) -> str:
    """A widget of its own whenever another control has chosen: its selection would be stale."""
    return f"{name}__{page.state.quality_epochs.get(name, 0)}"


def point_clicked() -> None:
    """Callback: the clicked point's setting is the chosen one."""
    page = current_page()
    selection = (held(_key(page, PLOT_KEY)) or {}).get("selection", {})
    for point in selection.get("points", []):
        data = point.get("customdata")
        if data:
            choose(page, str(data[0] if isinstance(data, list) else data), PLOT_KEY)
            return


def row_clicked() -> None:
    """Callback: the clicked row's setting is the chosen one."""
    page = current_page()
    rows = ((held(_key(page, TABLE_KEY)) or {}).get("selection", {})).get("rows", [])
    results = jobs_of(page).results()
    if rows and rows[0] < len(results):
        choose(page, results[rows[0]].report.name, TABLE_KEY)


def picked() -> None:
    """Callback of the list of settings, for whoever has no pointer."""
    page = current_page()
    choose(page, str(held(_key(page, PICK_KEY)) or ""), PICK_KEY)


def choose(page: Page, name: str, by: str) -> None:
    """Make a setting the chosen one; what the other controls show of it is made anew."""
    page.state.quality_chosen = name
    for key in (PLOT_KEY, TABLE_KEY, PICK_KEY):
        if key != by:
            page.state.quality_epochs[key] = page.state.quality_epochs.get(key, 0) + 1


def chosen_result(page: Page) -> Result | None:
    """The chosen setting's report; None if nothing is chosen."""
    return jobs_of(page).result(page.state.quality_chosen)


def show_chosen(page: Page) -> None:
    """The chosen setting's figures, and *Apply*, which makes it the engine's."""
    texts, results = page.texts, jobs_of(page).results()
    names = [item.report.name for item in results]
    chosen = page.state.quality_chosen
    st.selectbox(
        texts("quality.chosen"),
        names,
        index=names.index(chosen) if chosen in names else None,
        key=_key(page, PICK_KEY),
        on_change=picked,
        placeholder=texts("quality.choose"),
    )
    result = chosen_result(page)
    if result is None:
        st.caption(texts("quality.choose_help"))
        return
    config = page.engine.history.config
    changes = changes_to_apply(result.report.changes, config)
    what = ", ".join(change_text(texts, path, value) for path, value in changes.items())
    st.button(
        texts("button.apply"),
        key="quality_apply",
        type="primary",
        on_click=apply_chosen,
        disabled=page.locked or not changes,
        width="stretch",
    )
    st.caption(escape(texts("quality.would", what=what) if changes else texts("quality.is_set")))
    if any(all_settings()[path].metadata["change"] == "rebuild" for path in changes):
        st.caption(escape(texts("quality.rebuild")))
    size = result.report.bytes
    rows = report_rows(texts, result.report)
    rows.append((texts("quality.per_token"), f"{size.per_token:,.0f} B",
                 texts("quality.ratio", ratio=f"{size.ratio_to_bf16:.2f}",
                       bits=f"{size.bits_per_element:.2f}")))  # fmt: skip
    rows.append((texts("quality.read_per_token"), f"{size.read_per_token:,.0f} B",
                 texts("quality.read_note", share=_read_share(size))))  # fmt: skip
    st.html(rows_html(rows))
    st.caption(escape(basis(texts, result)))


def _read_share(size: ByteReport) -> str:
    """Bytes that a token reads, over those that are stored."""
    return f"{100 * size.read_per_token / max(1, size.allocated):.0f} %"


def apply_chosen() -> None:
    """Callback: the chosen setting becomes the engine's, as one change that can be undone."""
    page = current_page()
    result = chosen_result(page)
    if result is not None:
        changes = changes_to_apply(result.report.changes, page.engine.history.config)
        if changes:
            apply_changes(page, changes)


# Columns of the table: key of the row, format, and the factor to the shown unit.
COLUMNS: dict[str, tuple[str, float]] = {
    "kl_mean": ("%.3g", 1), "kl_p99": ("%.3g", 1), "top1": ("%.2f", 100), "top5": ("%.2f", 100),
    "perplexity": ("%.3f", 1), "bits_per_element": ("%.2f", 1), "ratio_to_bf16": ("%.2f", 1),
    "allocated_bytes": ("%d", 1), "live_bytes": ("%d", 1), "metadata_bytes": ("%d", 1),
    "read_bytes_per_token": ("%d", 1),
    "tokens_per_mib": ("%.0f", 1), "num_scored_tokens": ("%d", 1), "seconds": ("%.1f", 1),
}  # fmt: skip


def show_table(page: Page) -> None:
    """Every report in one sortable table; a click on a row chooses its setting."""
    texts, results = page.texts, jobs_of(page).results()
    rows: list[dict[str, Any]] = []
    for result in results:
        row = row_of(result)
        told = {"name": row["name"], "family": texts(f"quality.family.{row['family']}")}
        rows.append(told | {key: row[key] * factor for key, (_, factor) in COLUMNS.items()})
    words = st.column_config
    config: dict[str, Any] = {
        "name": words.TextColumn(texts("quality.column.name"), pinned=True, width=132),
        "family": words.TextColumn(texts("quality.column.family"), width=96),
    }
    for key, (shape, _) in COLUMNS.items():
        config[key] = words.NumberColumn(
            texts(f"quality.column.{key}"),
            format=shape,
            help=texts(f"quality.column_help.{key}"),
            width=76 if key.startswith("kl_") else None,  # as wide as its longest number
        )
    st.dataframe(
        pd.DataFrame(rows),
        key=_key(page, TABLE_KEY),
        hide_index=True,
        column_config=config,
        on_select=row_clicked,
        selection_mode="single-row",
        row_height=28,
        alt=texts("quality.table_alt"),
    )
    _downloads(page, results)


def _downloads(page: Page, results: list[Result]) -> None:
    texts = page.texts
    with st.container(horizontal=True, gap="small", key="quality_files"):
        st.download_button(
            texts("quality.as_json"), lambda: as_json(results), "quality.json",
            key="quality_json", mime="application/json", on_click="ignore",
        )  # fmt: skip
        st.download_button(
            texts("quality.as_csv"), lambda: as_csv(results), "quality.csv",
            key="quality_csv", mime="text/csv", on_click="ignore",
        )  # fmt: skip
        st.button(
            texts("quality.clear"), key="quality_clear", on_click=clear_results,
            disabled=page.locked or jobs_of(page).status.running,
        )  # fmt: skip
    st.caption(texts("files.help"))


def clear_results() -> None:
    """Callback: forget all reports."""
    page = current_page()
    jobs_of(page).clear()
    page.state.quality_chosen = ""
