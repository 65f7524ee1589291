"""Starting and cancelling quality jobs, and the line that tells how far the running one is."""

import os

import streamlit as st

from app.engine_owner import RANDOM_LAYERS_VARIABLE
from app.job_process import job_threads
from app.panels.act import attempt, sentence
from app.panels.page import Page, current_page, open_page
from app.panels.quality_text import given_text
from app.quality.jobs import QualityJobs, Result, Status
from app.quality.settings import CURRENT, current_setting
from app.text.sentences import escape
from workbench.quality.job_protocol import JobPlan
from workbench.quality.plan import LIVE_PLAN, QualityPlan
from workbench.quality.results import Setting

LIVE_LIMIT_S = 27.0  # of 30: the process starts before it, and the running step ends after it
RUNNING_POLL_S, IDLE_POLL_S = 1.0, 3.0


def jobs_of(page: Page) -> QualityJobs:
    """The one owner of quality jobs in this process."""
    return page.engine.owner.quality


def sweep_plan(page: Page, size: str, *, needle: bool = False) -> QualityPlan:
    """The plan of a size: quick, live or thorough."""
    weights = page.engine.history.config.model.weight_format
    context, scored, windows = {
        "quick": (256, 64, 2),
        "live": (LIVE_PLAN.context, LIVE_PLAN.scored, LIVE_PLAN.num_windows),
        "thorough": (1024, 512, 8),
    }[size]
    return QualityPlan(
        context=context,
        scored=scored,
        num_windows=windows,
        weight_format=weights,
        needle=needle,
    )


SIZES = ("quick", "live", "thorough")


def start_job(
    page: Page,
    settings: list[Setting],
    plan: QualityPlan,
    kind: str,
    *,
    probes: bool = False,
    time_limit_s: float = 0.0,
    same_text: Result | None = None,
) -> bool:
    """Start a job as the driving tab; what it is or why it is not stands in the answer's place.

    It reads the text that `same_text` was measured on, else the user's where one is given.
    """
    random_layers = int(os.environ.get(RANDOM_LAYERS_VARIABLE) or 0)

    def run() -> str:
        own = given_text() if same_text is None else jobs_of(page).text(same_text.text)
        jobs_of(page).start(
            JobPlan(
                settings=settings,
                plan=plan,
                model_path=page.engine.history.config.model.path,
                probes=probes,
                time_limit_s=time_limit_s,
                num_threads=job_threads(os.cpu_count() or 1),
                random_layers=random_layers,
            ),
            kind,
            own,
        )
        if len(settings) == 1:
            return page.texts("quality.started_one", name=settings[0].name)
        return page.texts("quality.started", n=len(settings))

    return attempt(page, run)


def measure_current() -> None:
    """Callback: the running engine's own setting, within half a minute."""
    page = current_page()
    setting = current_setting(page.engine.history.config)
    if start_job(page, [setting], sweep_plan(page, "live"), "live", time_limit_s=LIVE_LIMIT_S):
        page.state.quality_chosen = page.state.quality_chosen or CURRENT


def cancel_job() -> None:
    """Callback: stop after the running step; windows that were measured stay."""
    page = current_page()
    attempt(page, lambda: page.texts("quality.cancelling") if jobs_of(page).cancel() else None)


def show_progress(page: Page) -> None:
    """How far the job is; looks once a second and draws the page anew when a report came."""
    running = jobs_of(page).status.running
    seconds = RUNNING_POLL_S if running else IDLE_POLL_S
    st.fragment(_progress, run_every=seconds, key="quality_progress")()


def _progress() -> None:
    page = open_page()
    status = jobs_of(page).status
    if not page.state.quality_drawing and status.version != page.state.quality_version:
        st.rerun(scope="app")
    with st.container(key="quality_progress", gap="xsmall"):
        if status.running:
            st.progress(min(1.0, status.share), text=progress_text(page, status))
            st.button(
                page.texts("quality.cancel"),
                key="quality_cancel",
                on_click=cancel_job,
                disabled=page.locked or status.cancelling,
            )
        elif status.state == "failed":
            told = page.texts("quality.failed", error=status.error.rstrip("."))
            st.markdown(f":orange[:material/error: {escape(sentence(told))}]")
        elif status.state != "none":
            st.caption(escape(end_text(page, status)))


def progress_text(page: Page, status: Status) -> str:
    """Share, what runs, seconds so far and about how many more."""
    texts, elapsed = page.texts, jobs_of(page).elapsed_s()
    if status.cancelling:
        return texts("quality.cancelling")
    parts = [f"{100 * status.share:.0f} %", escape(doing_text(page, status)), f"{elapsed:.0f} s"]
    if status.share > 0.04:
        left = elapsed / status.share * (1 - status.share)
        parts.append(texts("quality.left", s=f"{left:.0f}"))
    return " · ".join(parts)


def doing_text(page: Page, status: Status) -> str:
    """What runs now: a window, a needle or a probe of a setting, or the loading."""
    texts, doing = page.texts, status.doing
    if doing is None:
        return texts("quality.queued")
    setting = doing.setting or texts("quality.full_cache")
    return texts(f"quality.doing.{doing.kind}", n=doing.number, setting=setting)


def end_text(page: Page, status: Status) -> str:
    """How the newest job ended."""
    seconds = f"{jobs_of(page).elapsed_s():.0f}"
    count = sum(1 for item in jobs_of(page).results() if item.job == status.number)
    key = status.state if count or status.state == "cancelled" else "nothing"
    return page.texts(f"quality.ended.{key}", n=count, of=status.num_settings, s=seconds)
