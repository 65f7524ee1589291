"""Reports as figures under stable names, and as a table for people."""

from collections.abc import Sequence

from rich.table import Table

from workbench.lab.figures import Figure
from workbench.quality.results import QualityReport, figure_name


def figures_of(reports: Sequence[QualityReport]) -> list[Figure]:
    """KL, agreement, perplexity and bytes of each setting, `<figure>_<setting>`."""
    figures: list[Figure] = []
    for report in reports:
        tokens = f"{report.num_scored_tokens} tokens, windows: {report.num_windows}, "
        note = "; ".join([f"{tokens}seed {report.seed}", *report.notes])
        bounds = f"{_bounds(report.kl_low, report.kl_high)}; {note}"
        diff = (
            f"full {report.perplexity_full:.4g}, difference {report.perplexity_diff:.2g}, "
            + _bounds(report.perplexity_diff_low, report.perplexity_diff_high)
        )
        values: list[tuple[str, float, str, str]] = [
            ("kl", report.kl_mean, "nats/token", bounds),
            ("kl_p99", report.kl_p99, "nats/token", note),
            ("top1", report.top1, "", f"{report.num_flips} flips"),
            ("top5", report.top5, "", ""),
            ("perplexity", report.perplexity, "", diff),
            ("bits_per_element", report.bytes.bits_per_element, "bits", ""),
            ("ratio_to_bf16", report.bytes.ratio_to_bf16, "", ""),
            (
                "read_per_token",
                report.bytes.read_per_token,
                "bytes",
                f"bounds of {report.bytes.bounds} bytes beside the pages",
            ),
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


def _bounds(low: float | None, high: float | None) -> str:
    return "no interval from one window" if low is None else f"95 %: {low:.2g} to {high:.2g}"


def as_table(reports: Sequence[QualityReport]) -> Table:
    """One row a setting, best KL first; bits a number of the whole text, evicted ones included.

    read: KiB of pages and bounds that a generated token reads.
    """
    table = Table("setting", "KL", "p99", "top-1", "top-5", "PPL", "full", "bits", "read", "needle")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for report in sorted(reports, key=lambda item: item.kl_mean):
        needle = sum(item.logprob for item in report.needle) / max(1, len(report.needle))
        table.add_row(
            report.name, f"{report.kl_mean:.5f}", f"{report.kl_p99:.3f}",
            f"{100 * report.top1:.1f}", f"{100 * report.top5:.1f}", f"{report.perplexity:.2f}",
            f"{report.perplexity_full:.2f}", f"{16 / report.bytes.ratio_to_bf16:.2f}",
            f"{report.bytes.read_per_token / 1024:,.0f}",
            f"{needle:.2f}" if report.needle else "-",
        )  # fmt: skip
    return table
