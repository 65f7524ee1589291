"""The card *This setting*: what the running engine's settings cost in quality."""

from html import escape as escape_html
from statistics import median

import streamlit as st

from app.panels.page import Page
from app.panels.quality_jobs import jobs_of, measure_current
from app.quality.jobs import Result
from app.quality.settings import CURRENT
from app.text import Texts
from app.text.sentences import change_text, escape
from workbench.quality.job_protocol import TIER_SETTINGS, not_measured, quality_changes
from workbench.quality.results import QualityReport

Row = tuple[str, str, str]  # label, value with its unit, a note


def show_current(page: Page) -> None:
    """The button, the figures of the setting that runs, and what they were measured on."""
    texts, jobs = page.texts, jobs_of(page)
    changes = quality_changes(page.engine.history.config)
    what = ", ".join(change_text(texts, path, value) for path, value in changes.items())
    st.markdown(f"**{texts('quality.current')}**", help=texts("quality.current_help"))
    st.caption(escape(what or texts("quality.defaults")))
    _tell_not_measured(page)
    result = jobs.result(CURRENT)
    fits = result is not None and result.report.changes == changes
    st.button(
        texts("quality.measure_again" if fits else "quality.measure"),
        key="quality_measure",
        type="primary" if jobs.results() and not fits else "secondary",
        on_click=measure_current,
        disabled=page.locked or jobs.status.running,
        help=texts("quality.measure_help"),
    )
    if result is None:
        return
    if not fits:
        st.caption(f":orange[{escape(texts('quality.outdated'))}]")
    st.html(rows_html(report_rows(texts, result.report)))
    st.caption(escape(basis(texts, result)))


def _tell_not_measured(page: Page) -> None:
    """What else is lossy now, and the commands that say what it costs."""
    left_out = not_measured(page.engine.history.config)
    if left_out:
        what = ", ".join(change_text(page.texts, path, value) for path, value in left_out.items())
        how = ", ".join(f"`workbench bench {TIER_SETTINGS[path]}`" for path in left_out)
        told = escape(page.texts("quality.not_measured", what=what))
        st.markdown(f":orange[{told}] {page.texts('quality.not_measured_how', commands=how)}")


def report_rows(texts: Texts, report: QualityReport) -> list[Row]:
    """The figures in which a setting is judged, each with its unit."""
    nats = texts("quality.nats")
    interval, change = texts("quality.no_interval"), texts("quality.no_interval")
    if report.kl_low is not None and report.kl_high is not None:
        bounds = f"{number(report.kl_low)} – {number(report.kl_high)}"
        interval = texts("quality.interval", bounds=bounds)
    if report.perplexity_diff_low is not None and report.perplexity_diff_high is not None:
        bounds = f"{report.perplexity_diff_low:+.3g} … {report.perplexity_diff_high:+.3g}"
        change = texts("quality.difference", bounds=bounds)
    return [
        (texts("quality.kl_mean"), f"{number(report.kl_mean)} {nats}",
         interval),
        (texts("quality.kl_p99"), f"{number(report.kl_p99)} {nats}", ""),
        (texts("quality.top1"), f"{100 * report.top1:.2f} %",
         texts("quality.num_flips", n=report.num_flips)),
        (texts("quality.top5"), f"{100 * report.top5:.2f} %", ""),
        (texts("quality.perplexity"), f"{report.perplexity_full:.3f} → {report.perplexity:.3f}",
         change),
        (texts("quality.divergence"), divergence(texts, report), ""),
    ]  # fmt: skip


def divergence(texts: Texts, report: QualityReport) -> str:
    """After how many tokens the first greedy choice differs, the median over windows."""
    found = [count for count in report.first_divergence if count >= 0]
    if not found:
        return texts("quality.no_divergence")
    return texts("quality.after_tokens", n=f"{median(found):g}",
                 k=len(found), of=report.num_windows)  # fmt: skip


def basis(texts: Texts, result: Result) -> str:
    """Where the figures come from: measured, tokens, windows, context, weights, seed, seconds."""
    report = result.report
    told = texts(
        "quality.basis" if result.final else "quality.basis_so_far",
        n=f"{report.num_scored_tokens:,}",
        windows=report.num_windows,
        context=report.context,
        weights=result.weight_format,
        full=report.full_format,
        seed=report.seed,
        s=f"{report.seconds:.1f}",
    )
    if result.text:
        told += " " + texts("quality.basis_text", name=result.text)
    return " ".join([told, *(f"{note[:1].upper()}{note[1:]}." for note in report.notes)])


def number(value: float) -> str:
    """Three significant digits, 0 as 0."""
    if value == 0:
        return "0"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.1e}"


def rows_html(rows: list[Row]) -> str:
    """Label and value on one line, the value right-aligned, the note small below it."""
    parts = []
    for label, value, note in rows:
        small = f"<dd class='note'>{escape_html(note)}</dd>" if note else ""
        parts.append(
            f"<div><dt>{escape_html(label)}</dt><dd>{escape_html(value)}</dd>{small}</div>"
        )
    return f"<dl class='figures'>{''.join(parts)}</dl>"
