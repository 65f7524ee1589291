"""Downloads of reports: everything as JSON, one row a setting as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from app.quality.jobs import Result
from app.quality.settings import family_of


def row_of(result: Result) -> dict[str, Any]:
    """A report in one flat row; nats per token, bytes, seconds."""
    report = result.report
    size = report.bytes
    return {
        "name": report.name,
        "family": family_of(report.changes),
        "kl_mean": report.kl_mean,
        "kl_low": report.kl_low,
        "kl_high": report.kl_high,
        "kl_p99": report.kl_p99,
        "top1": report.top1,
        "top5": report.top5,
        "perplexity_full": report.perplexity_full,
        "perplexity": report.perplexity,
        "perplexity_diff_low": report.perplexity_diff_low,
        "perplexity_diff_high": report.perplexity_diff_high,
        "num_flips": report.num_flips,
        "bits_per_element": size.bits_per_element,
        "ratio_to_bf16": size.ratio_to_bf16,
        "bytes_per_token": size.per_token,
        "read_bytes_per_token": size.read_per_token,
        "allocated_bytes": size.allocated,
        "live_bytes": size.live,
        "metadata_bytes": size.metadata,
        "tokens_per_mib": size.tokens_per_mib,
        "num_scored_tokens": report.num_scored_tokens,
        "num_windows": report.num_windows,
        "context": report.context,
        "seed": report.seed,
        "weight_format": result.weight_format,
        "full_format": report.full_format,
        "text": result.text,
        "seconds": report.seconds,
        "changes": " ".join(f"{path}={value}" for path, value in report.changes.items()),
    }


def as_csv(results: Sequence[Result]) -> str:
    """One line a setting under a header; a cell that a spreadsheet would compute is quoted."""
    rows = [{key: _plain(value) for key, value in row_of(result).items()} for result in results]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["name"])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_json(results: Sequence[Result]) -> bytes:
    """All that is known of each setting, heat maps included."""
    return msgspec.json.format(msgspec.json.encode(list(results)), indent=1)


def _plain(value: Any) -> Any:
    """A name may begin as a formula does; spreadsheets take it as text behind an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" else value
