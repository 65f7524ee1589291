"""Summarises what a setting's windows gave."""

from dataclasses import replace
from typing import Any

import numpy as np

from workbench.model.tokenizer import Tokenizer
from workbench.quality.metrics import (
    TokenScores,
    bootstrap,
    first_divergence,
    join,
    mean_by_offset,
    perplexity,
)
from workbench.quality.plan import QualityPlan
from workbench.quality.results import MAX_FLIPS, Flip, QualityReport, Setting


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
