"""The sweep: which settings to compare, on how much text, from the page or from a file."""

from typing import Any

import streamlit as st

from app.panels.act import sentence
from app.panels.page import Page, current_page, held
from app.panels.quality_jobs import SIZES, jobs_of, start_job, sweep_plan
from app.panels.quality_text import show_text
from app.quality.settings import (
    current_setting,
    format_settings,
    read_file,
    retention_settings,
    sparse_settings,
)
from app.text.sentences import escape, value_text
from workbench.errors import WorkbenchError
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting

MAX_NAMED_PROBLEMS = 5
FORMATS_KEY, KEEP_KEY, SPARSE_KEY, SIZE_KEY = (
    "sweep_formats", "sweep_retention", "sweep_sparse", "sweep_size",
)  # fmt: skip
CURRENT_KEY, NEEDLE_KEY, FILE_KEY, PROBES_KEY = (
    "sweep_current", "sweep_needle", "sweep_file", "sweep_probes",
)  # fmt: skip


def show_sweep(page: Page) -> None:
    """Choices of a sweep and its button."""
    texts = page.texts
    names = [setting.name for setting in format_settings()]
    if FORMATS_KEY not in st.session_state:
        st.session_state[FORMATS_KEY] = names
    st.markdown(f"**{texts('quality.sweep')}**", help=texts("quality.sweep_help"))
    st.pills(
        texts("quality.formats"), names, selection_mode="multi", key=FORMATS_KEY,
        format_func=lambda name: format_label(page, name), disabled=page.locked,
    )  # fmt: skip
    with st.container(horizontal=True, gap="small", key="sweep_which"):
        for which in ("all", "none"):
            st.button(
                texts(f"quality.{which}"), key=f"sweep_{which}", type="tertiary",
                on_click=choose_formats, args=(which,), disabled=page.locked,
            )  # fmt: skip
    st.pills(
        texts("quality.retention"), _policies(), selection_mode="multi", key=KEEP_KEY,
        format_func=lambda name: value_text(texts, "retention.policy", name),
        help=texts("quality.retention_help"), disabled=page.locked,
    )  # fmt: skip
    st.pills(
        texts("quality.sparse"), [item.name for item in sparse_settings()],
        selection_mode="multi", key=SPARSE_KEY, format_func=lambda name: sparse_label(page, name),
        help=texts("quality.sparse_help"), disabled=page.locked,
    )  # fmt: skip
    st.segmented_control(
        texts("quality.size"), SIZES, default="quick", key=SIZE_KEY, required=True,
        format_func=lambda size: texts(f"quality.sizes.{size}"), help=texts("quality.size_help"),
        disabled=page.locked,
    )  # fmt: skip
    with st.container(horizontal=True, gap="small", key="sweep_toggles"):
        st.checkbox(texts("quality.add_current"), key=CURRENT_KEY, disabled=page.locked)
        st.checkbox(
            texts("quality.needle"), key=NEEDLE_KEY, help=texts("quality.needle_help"),
            disabled=page.locked,
        )  # fmt: skip
        st.checkbox(
            texts("quality.inside"), key=PROBES_KEY, help=texts("quality.inside_help"),
            disabled=page.locked,
        )  # fmt: skip
    show_text(page)
    with st.expander(texts("quality.file"), key="sweep_more"):
        st.file_uploader(
            texts("quality.file"), type=["json", "toml"], key=FILE_KEY, on_change=file_dropped,
            help=texts("quality.file_help"), max_upload_size=1, label_visibility="collapsed",
            disabled=page.locked,
        )  # fmt: skip
        for line in page.state.quality_file_report:
            st.caption(escape(line))
    st.button(
        texts("quality.run_sweep"), key="quality_sweep", on_click=run_sweep, width="stretch",
        disabled=page.locked or jobs_of(page).status.running,
    )  # fmt: skip


def choose_formats(which: str) -> None:
    """Callback: choose every format, or none."""
    current_page()
    names = [setting.name for setting in format_settings()] if which == "all" else []
    st.session_state[FORMATS_KEY] = names


def format_label(page: Page, name: str) -> str:
    """A format as the knobs name it; K4/V2 is no format but a pair."""
    return (
        page.texts("quality.k4v2")
        if name == "k4v2"
        else value_text(page.texts, "cache.k_format", name)
    )


def sparse_label(page: Page, name: str) -> str:
    """Sparse reads as the knobs name them, with their share."""
    kind, _, share = name.partition(" ")
    return f"{value_text(page.texts, 'retention.sparse', kind)} {share}"


def _policies() -> list[str]:
    return [str(item.changes["retention.policy"]) for item in retention_settings(0)]


def run_sweep() -> None:
    """Callback: measure what is chosen, the file's settings included."""
    page = current_page()
    formats, kept = held(FORMATS_KEY) or [], held(KEEP_KEY) or []
    sparse = held(SPARSE_KEY) or []
    size = held(SIZE_KEY) or "quick"
    needle, probes = bool(held(NEEDLE_KEY)), bool(held(PROBES_KEY))
    settings = [item for item in format_settings() if item.name in formats]
    plan = sweep_plan(page, size, needle=needle)
    settings += [item for item in retention_settings(plan.context)
                 if item.changes["retention.policy"] in kept]  # fmt: skip
    settings += [item for item in sparse_settings() if item.name in sparse]
    if held(CURRENT_KEY):
        settings.append(current_setting(page.engine.history.config))
    settings += [item for item in _file_settings(page) if item.name not in _names(settings)]
    start_sweep(page, settings, plan, probes=probes)


def run_all_formats() -> None:
    """Callback of the empty page's button: all formats on little text."""
    page = current_page()
    start_sweep(page, format_settings(), sweep_plan(page, "quick"), probes=False)


def start_sweep(page: Page, settings: list[Setting], plan: QualityPlan, *, probes: bool) -> None:
    """Start a sweep, or say that nothing is chosen."""
    if not settings:
        page.state.problem = page.texts("quality.nothing_chosen")
        return
    start_job(page, settings, plan, "sweep", probes=probes)


def _names(settings: list[Setting]) -> set[str]:
    return {item.name for item in settings}


def file_dropped() -> None:
    """Callback: say at once how many settings can be measured, and name each that cannot."""
    page = current_page()
    page.state.quality_file_report = []
    page.state.problem = ""
    file: Any = held(FILE_KEY)
    if file is None:
        return
    try:
        read = read_file(file.name, file.getvalue())
    except WorkbenchError as error:
        page.state.quality_file_report = [sentence(str(error))]
        return
    total = len(read.settings) + len(read.problems)
    told = [page.texts("quality.file_ok", n=len(read.settings), of=total)]
    told += [sentence(problem) for problem in read.problems[:MAX_NAMED_PROBLEMS]]
    if len(read.problems) > MAX_NAMED_PROBLEMS:
        told.append(page.texts("quality.file_more", n=len(read.problems) - MAX_NAMED_PROBLEMS))
    page.state.quality_file_report = told


def _file_settings(page: Page) -> list[Setting]:
    file: Any = held(FILE_KEY)
    if file is None:
        return []
    try:
        return read_file(file.name, file.getvalue()).settings
    except WorkbenchError:
        return []  # told when it was dropped
