"""How far two runs of the same forced text are apart: pure functions on logits and scores."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

TOP = 5


@dataclass(frozen=True)
class TokenScores:
    """One entry a scored position, all [n]; `positions` int64 count from the window's start.

    `mask` marks positions that read compressed entries: only they count. kl and nll in nats.
    """

    positions: np.ndarray
    mask: np.ndarray  # bool
    kl: np.ndarray  # float64, KL(p_full || p_ours)
    top5: np.ndarray  # float64, share of the full run's five best that are among ours
    nll_full: np.ndarray  # float64, of the text's next token
    nll: np.ndarray
    best_full: np.ndarray  # int64, the greedy choice
    best: np.ndarray
    targets: np.ndarray  # int64, what the text says

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def flips(self) -> np.ndarray:
        """Indices of counted positions whose greedy choice differs."""
        return np.flatnonzero((self.best_full != self.best) & self.mask)


def score_rows(
    log_full: Tensor,  # fp32 [n, vocab]
    log_ours: Tensor,
    targets: np.ndarray,  # int64 [n], the text's next tokens
    positions: np.ndarray,
    mask: np.ndarray,
) -> TokenScores:
    """Compare log-probabilities row by row; equal rows give 0 and agree exactly."""
    rows = torch.arange(len(targets), device=log_full.device)
    wanted = torch.from_numpy(np.asarray(targets, np.int64)).to(log_full.device)
    return TokenScores(
        positions=np.asarray(positions, np.int64),
        mask=np.asarray(mask, bool),
        kl=_float64(token_kl(log_full, log_ours)),
        top5=_float64(top_overlap(log_full, log_ours, TOP)),
        nll_full=_float64(-log_full[rows, wanted]),
        nll=_float64(-log_ours[rows, wanted]),
        best_full=log_full.argmax(-1).cpu().numpy(),
        best=log_ours.argmax(-1).cpu().numpy(),
        targets=wanted.cpu().numpy(),
    )


def token_kl(log_full: Tensor, log_ours: Tensor) -> Tensor:
    """KL(p_full || p_ours) of each row of log-probabilities [n, vocab], fp32 [n], never below 0."""
    return (log_full.exp() * (log_full - log_ours)).sum(-1).clamp_(min=0.0)


def top_overlap(log_full: Tensor, log_ours: Tensor, count: int) -> Tensor:
    """Share of the `count` best tokens that both rows have, fp32 [n]."""
    count = min(count, log_full.shape[-1])
    full = log_full.topk(count).indices  # [n, count]
    ours = log_ours.topk(count).indices
    return (full[:, :, None] == ours[:, None, :]).any(-1).float().mean(-1)


def join(parts: Sequence[TokenScores]) -> TokenScores:
    """One after the other; raises ValueError when there is none."""
    names = [item.name for item in fields(TokenScores)]
    return TokenScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def first_divergence(scores: TokenScores) -> int:
    """Counted positions before the first whose greedy choice differs; -1 if none does."""
    flips = scores.flips
    return int(scores.mask[: flips[0]].sum()) if len(flips) else -1


def perplexity(nll: np.ndarray) -> float:
    """exp of the mean of negative log-likelihoods in nats."""
    return float(np.exp(nll.mean()))


@dataclass(frozen=True)
class Interval:
    """A value with the bounds between which 95 % of resampled values lie; None: one window."""

    value: float
    low: float | None
    high: float | None


def bootstrap(
    windows: Sequence[TokenScores], seed: int, num_samples: int
) -> tuple[Interval, Interval]:
    """Mean KL, and perplexity of ours minus that of the full cache, resampled over windows.

    Windows are drawn with replacement (percentile bootstrap, Efron 1979): tokens of one window
    depend on each other, windows do not.
    """
    used = [window for window in windows if window.mask.any()]
    counts = np.array([window.mask.sum() for window in used], np.float64)
    sums = np.array(
        [[column[w.mask].sum() for column in (w.kl, w.nll_full, w.nll)] for w in used]
    )  # [windows, 3]
    drawn = np.random.default_rng(seed).integers(0, len(used), (num_samples, len(used)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)[:, None]  # [samples, 3]
    whole = sums.sum(0) / counts.sum()
    if len(used) < 2:
        means = means[:0]
    kl = _interval(float(whole[0]), means[:, 0])
    return kl, _interval(
        float(np.exp(whole[2]) - np.exp(whole[1])), np.exp(means[:, 2]) - np.exp(means[:, 1])
    )


def mean_by_offset(windows: Sequence[TokenScores]) -> np.ndarray:
    """Mean KL of each position over windows of one length, float64 [n]; NaN where none counts."""
    kl = np.stack([window.kl for window in windows])
    mask = np.stack([window.mask for window in windows])
    counted = mask.sum(0)
    total = np.where(mask, kl, 0.0).sum(0)
    return np.where(counted > 0, total / np.maximum(counted, 1), np.nan)


def _interval(value: float, samples: np.ndarray) -> Interval:
    if not len(samples):
        return Interval(value, None, None)
    low, high = np.percentile(samples, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def _float64(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
