"""Reports as figures under stable names, and as a table for people."""

import re
from collections.abc import Sequence

from rich.table import Table

from workbench.lab.figures import Figure
from workbench.quality.report import QualityReport


def figures_of(reports: Sequence[QualityReport]) -> list[Figure]:
    """KL, agreement, perplexity and bytes of each setting, `<figure>_<setting>`."""
    figures: list[Figure] = []
    for report in reports:
        tokens = f"{report.num_scored_tokens} tokens in {report.num_windows} windows, "
        note = "; ".join([f"{tokens}seed {report.seed}", *report.notes])
        bounds = f"95 %: {report.kl_low:.2g} to {report.kl_high:.2g}; {note}"
        diff = (
            f"full {report.perplexity_full:.4g}, difference 95 %: "
            f"{report.perplexity_diff_low:.2g} to {report.perplexity_diff_high:.2g}"
        )
        values: list[tuple[str, float, str, str]] = [
            ("kl", report.kl_mean, "nats/token", bounds),
            ("kl_p99", report.kl_p99, "nats/token", note),
            ("top1", report.top1, "", f"{report.num_flips} flips"),
            ("top5", report.top5, "", ""),
            ("perplexity", report.perplexity, "", diff),
            ("bits_per_element", report.bytes.bits_per_element, "bits", ""),
            ("ratio_to_bf16", report.bytes.ratio_to_bf16, "", ""),
            ("tokens_per_mib", report.bytes.tokens_per_mib, "tokens/MiB", ""),
        ]
        values += [
            ("needle", sum(item.logprob for item in report.needle) / len(report.needle), "nats",
             _needle_note(report))
        ] if report.needle else []  # fmt: skip
        name = figure_name(report.name)
        figures += [
            Figure(name=f"{key}_{name}", value=value, unit=unit, note=text)
            for key, value, unit, text in values
        ]
    return figures


def _needle_note(report: QualityReport) -> str:
    full = sum(item.logprob_full for item in report.needle) / len(report.needle)
    found = sum(item.exact for item in report.needle)
    return f"full {full:.3g}; {found} of {len(report.needle)} depths found"


def figure_name(name: str) -> str:
    """A setting's name as part of a figure's: lower case, digits, underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "setting"


def as_table(reports: Sequence[QualityReport]) -> Table:
    """One row a setting, best KL first."""
    table = Table(
        "setting", "KL", "p99", "top-1 %", "top-5 %", "perplexity (full)", "bits", "x bf16",
        "tokens/MiB", "needle",
    )  # fmt: skip
    for report in sorted(reports, key=lambda item: item.kl_mean):
        needle = " ".join(f"{item.logprob:.1f}" for item in report.needle)
        table.add_row(
            report.name, f"{report.kl_mean:.5f}", f"{report.kl_p99:.4f}",
            f"{100 * report.top1:.2f}", f"{100 * report.top5:.2f}",
            f"{report.perplexity:.3f} ({report.perplexity_full:.3f})",
            f"{report.bytes.bits_per_element:.2f}", f"{report.bytes.ratio_to_bf16:.2f}",
            f"{report.bytes.tokens_per_mib:.0f}", needle or "-",
        )  # fmt: skip
    return table
