"""What one setting costs, as plain values for JSON, tables and plots."""

import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from workbench.model.tokenizer import Tokenizer
from workbench.quality.byte_report import ByteReport
from workbench.quality.metrics import (
    TokenScores,
    bootstrap,
    first_divergence,
    join,
    mean_by_offset,
    perplexity,
)
from workbench.quality.plan import QualityPlan

MAX_FLIPS = 200


def figure_name(name: str) -> str:
    """A setting's name as part of a figure's: lower case, digits, underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "setting"


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named set of changes to the default config: setting path to value."""

    name: str
    changes: dict[str, Any]


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """A position whose greedy next token differs, with both choices and what the text says."""

    window: int
    position: int
    full: str
    ours: str
    text: str


class NeedleScore(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probability in nats of the right digits, summed; `exact`: each was the best choice."""

    depth: float
    logprob_full: float
    logprob: float
    exact_full: bool
    exact: bool


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """A setting beside the full-precision cache on the same text and schedule.

    KL(full || setting) in nats a token; `*_low` and `*_high` bound 95 % of a bootstrap over
    windows (None for a single window). `kl_by_offset`: mean over windows for each position after
    the context (None where no position counts). `first_divergence`: scored tokens before the first
    flip of each window, -1 if there is none. `num_scored_tokens` is what every mean is over.
    """

    name: str
    changes: dict[str, Any]
    full_format: str
    num_windows: int
    num_scored_tokens: int
    context: int
    seed: int
    kl_mean: float
    kl_low: float | None
    kl_high: float | None
    kl_p99: float
    kl_by_offset: list[float | None]
    top1: float
    top5: float
    perplexity_full: float
    perplexity: float
    perplexity_diff: float
    perplexity_diff_low: float | None
    perplexity_diff_high: float | None
    first_divergence: list[int]
    num_flips: int
    flips: list[Flip]  # the first MAX_FLIPS
    bytes: ByteReport
    needle: list[NeedleScore]
    seconds: float  # of this setting's runs
    notes: list[str]


def build_report(
    setting: Setting,
    windows: list[TokenScores],
    *,
    plan: QualityPlan,
    tokenizer: Tokenizer,
    full_format: str,
    **rest: Any,
) -> QualityReport:
    """Summarise a setting's windows; `rest`: bytes, needle, seconds.

    When nothing was compressed or evicted anywhere, every position counts, and a note says so.
    """
    notes: list[str] = []
    if not any(window.mask.any() for window in windows):
        windows = [replace(window, mask=np.ones(len(window), bool)) for window in windows]
        notes.append("nothing was compressed or evicted: every position counts")
    whole = join(windows)
    mask = whole.mask
    kl, ppl = bootstrap(windows, plan.seed, plan.num_bootstrap)
    flips = _flips(windows, tokenizer)
    return QualityReport(
        name=setting.name,
        changes=setting.changes,
        full_format=full_format,
        num_windows=len(windows),
        num_scored_tokens=int(mask.sum()),
        context=plan.context,
        seed=plan.seed,
        kl_mean=kl.value,
        kl_low=kl.low,
        kl_high=kl.high,
        kl_p99=float(np.percentile(whole.kl[mask], 99)),
        kl_by_offset=[None if np.isnan(v) else float(v) for v in mean_by_offset(windows)],
        top1=float((whole.best_full == whole.best)[mask].mean()),
        top5=float(whole.top5[mask].mean()),
        perplexity_full=perplexity(whole.nll_full[mask]),
        perplexity=perplexity(whole.nll[mask]),
        perplexity_diff=ppl.value,
        perplexity_diff_low=ppl.low,
        perplexity_diff_high=ppl.high,
        first_divergence=[first_divergence(window) for window in windows],
        num_flips=len(whole.flips),
        flips=flips,
        notes=notes,
        **rest,
    )


def _flips(windows: list[TokenScores], tokenizer: Tokenizer) -> list[Flip]:
    """The first flips in reading order, window by window."""
    flips: list[Flip] = []
    for number, window in enumerate(windows):
        for at in window.flips[: MAX_FLIPS - len(flips)]:
            flips.append(
                Flip(
                    window=number,
                    position=int(window.positions[at]),
                    full=tokenizer.token_text(int(window.best_full[at])),
                    ours=tokenizer.token_text(int(window.best[at])),
                    text=tokenizer.token_text(int(window.targets[at])),
                )
            )
    return flips
