"""Which device computes: heads, layers and experts on several processes, run from the page."""

import os
from typing import Any

import pandas as pd
import streamlit as st

from app.panels.act import attempt, sentence
from app.panels.page import Page, current_page, open_page
from app.panels.tiers_worth import PLOT_CONFIG
from app.text.sentences import escape
from app.tiers.device_figures import balance_figure, bytes_figure
from app.tiers.device_jobs import DeviceJobs
from workbench.lab.devices_protocol import COUNTERPART, MODELS, DevicesPlan, ResultLine

RUNNING_POLL_S, IDLE_POLL_S = 1.0, 3.0
CHOSEN = ("tp2", "pp2", "ep2")
NEW_TOKENS = {"random": 17, "default": 9}


def device_jobs(page: Page) -> DeviceJobs:
    """The one owner of devices jobs in this process."""
    return page.engine.owner.devices


def show_devices(page: Page) -> None:
    """Choice of placements, progress, and what came of each: bytes moved, balance, speed."""
    texts = page.texts
    status = device_jobs(page).status
    with st.container(key="devices_choice", horizontal=True, gap="medium"):
        st.multiselect(
            texts("devices.placements"), list(COUNTERPART), default=list(CHOSEN),
            key="devices_chosen", format_func=lambda name: texts(f"devices.name.{name}"),
            help=texts("devices.placements_help"), disabled=page.locked,
        )  # fmt: skip
        st.radio(
            texts("devices.weights"), MODELS, key="devices_model", horizontal=True,
            format_func=lambda name: texts(f"devices.model.{name}"),
            help=texts("devices.weights_help"), disabled=page.locked,
        )  # fmt: skip
    st.button(
        texts("devices.run"), key="devices_run", on_click=run_devices, type="primary",
        disabled=page.locked or status.running or not st.session_state.get("devices_chosen"),
    )  # fmt: skip
    st.fragment(
        _progress, run_every=RUNNING_POLL_S if status.running else IDLE_POLL_S,
        key="devices_progress",
    )(status.version)  # fmt: skip
    _show_results(page)


def run_devices() -> None:
    """Callback: compare the chosen placements in a process of its own."""
    page = current_page()
    chosen = [str(name) for name in st.session_state.get("devices_chosen", [])]
    model = str(st.session_state.get("devices_model", MODELS[0]))

    def run() -> str:
        plan = DevicesPlan(placements=chosen, model=model, new_tokens=NEW_TOKENS[model])
        device_jobs(page).start(plan)
        return page.texts("devices.started", n=len(chosen))

    attempt(page, run)


def cancel_devices() -> None:
    """Callback: stop after the running step; results that came stay."""
    page = current_page()
    jobs = device_jobs(page)
    attempt(page, lambda: page.texts("devices.cancelling") if jobs.cancel() else None)


def _progress(drawn_version: int) -> None:
    page = open_page()
    texts, jobs = page.texts, device_jobs(page)
    status = jobs.status
    if status.version != drawn_version:
        st.rerun(scope="app")
    with st.container(key="devices_progress", gap="xsmall"):
        if status.running:
            st.progress(
                min(1.0, status.doing.share) if status.doing else 0.0,
                text=_doing_text(page, jobs.elapsed_s()),
            )
            st.button(
                texts("devices.cancel"), key="devices_cancel", on_click=cancel_devices,
                disabled=page.locked or status.cancelling,
            )  # fmt: skip
        elif status.state == "failed":
            told = texts("devices.failed", error=status.error.rstrip("."))
            st.markdown(f":orange[:material/error: {escape(sentence(told))}]")
        elif status.state != "none":
            st.caption(texts(f"devices.ended.{status.state}", s=f"{jobs.elapsed_s():.0f}"))


def _doing_text(page: Page, elapsed_s: float) -> str:
    texts, status = page.texts, device_jobs(page).status
    if status.cancelling:
        return texts("devices.cancelling")
    if status.doing is None:
        return texts("devices.queued")
    name = texts(f"devices.name.{status.doing.name}")
    doing = texts(f"devices.doing.{status.doing.kind}", name=name)
    return f"{100 * status.doing.share:.0f} % · {doing} · {elapsed_s:.0f} s"


def _show_results(page: Page) -> None:
    texts, results = page.texts, device_jobs(page).results()
    if not results:
        st.caption(texts("devices.nothing"))
        return
    cores = len(os.sched_getaffinity(0))
    most = max(len(result.report.ranks) for result in results)
    st.dataframe(
        pd.DataFrame([_row(page, result) for result in results]), hide_index=True, row_height=28,
        alt=texts("devices.table_alt"),
    )  # fmt: skip
    if most > cores - 1:
        st.caption(texts("devices.few_cores", n=most, cores=cores))
    with st.container(key="devices_figures", horizontal=True, gap="medium"):
        for figure, name in ((bytes_figure, "bytes"), (balance_figure, "balance")):
            with st.container(key=f"devices_{name}", width="stretch", gap="xsmall"):
                st.markdown(f"**{texts(f'devices.{name}')}**")
                st.plotly_chart(
                    figure(texts, results), key=f"devices_{name}_figure", config=PLOT_CONFIG,
                    alt=texts(f"devices.{name}_alt"),
                )  # fmt: skip
                st.caption(texts(f"devices.{name}_basis"))


def _row(page: Page, result: ResultLine) -> dict[str, Any]:
    texts, report = page.texts, result.report
    spread = {
        "tensor": report.kv_balance, "pipeline": report.token_balance,
        "experts": report.expert_balance,
    }[report.kind]  # fmt: skip
    waits = max(rank.comm_s for rank in report.ranks) / report.wall_s
    return {
        texts("devices.column.name"): texts(f"devices.name.{result.name}"),
        texts("devices.column.ranks"): report.num_ranks,
        texts("devices.column.moved"): round(sum(report.moved_per_token.values())),
        texts("devices.column.formula"): round(sum(report.formula_per_token.values())),
        texts("devices.column.kv"): f"{report.kv_balance:.2f}",
        texts("devices.column.spread"): f"{spread:.2f}",
        texts("devices.column.waits"): f"{100 * waits:.0f} %",
        texts("devices.column.speed"): f"{result.tokens_per_s:,.0f}",
        texts("devices.column.beside"): f"{result.tokens_per_s / result.one_tokens_per_s:.2f} x",
        texts("devices.column.equal"): f"{result.num_equal}/{result.num_tokens}",
        texts("devices.column.apart"): f"{result.logit_difference:.1e}",
        texts("devices.column.model"): result.model,
    }
