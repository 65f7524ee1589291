"""Merging: what is evicted leaves its value to kept tokens.

*Nearest*: to the one with the most similar key. A slot that stands for n tokens has log n added to
its score. So merging tokens with equal keys changes nothing at all: n exp(s) = exp(s + log n), and
their values enter by their weighted mean. Source: nearest kept key by cosine as in kvpress's
MergingPress and D2O; the count is ours.

*CaM*: by chance, to the next kept tokens, an equal part each. Source: Zhang et al., CaM: Cache
Merging; keys stay, and nothing is counted.
"""

import numpy as np
import torch
from torch import Tensor

MERGE_BUDGET = 32  # kept tokens behind an evicted one that share its value (CaM)


def merge_into_kept(
    keys: Tensor, values: Tensor, counts: Tensor, kept: Tensor, gone: Tensor, least_cosine: float
) -> tuple[Tensor, Tensor]:
    """Values fp32 [k, D] and counts fp32 [k] of the kept tokens of one head.

    keys, values: fp32 [T, D]; counts: fp32 [T], tokens that each slot stands for; kept int64 [k],
    gone int64 [g]. A token whose nearest kept key has a smaller cosine than `least_cosine` is
    dropped without a trace.
    """
    weight = counts[kept].clone()
    total = values[kept] * weight[:, None]
    if len(kept) and len(gone):
        unit = torch.nn.functional.normalize(keys, dim=-1)
        best, nearest = (unit[gone] @ unit[kept].T).max(-1)  # [g]
        close = best >= least_cosine
        heirs, left = nearest[close], gone[close]
        weight.index_add_(0, heirs, counts[left])
        total.index_add_(0, heirs, values[left] * counts[left, None])
    return total / weight[:, None], weight


def spread_into_following(
    values: Tensor, mass: Tensor, kept: Tensor, gone: Tensor, draws: Tensor
) -> Tensor:
    """Values fp32 [k, D] of the kept tokens of one head, with what evicted ones left to them.

    values: fp32 [T, D]; mass: fp32 [T], attention each token received; kept int64 [k] and gone
    int64 [g], both ascending; draws: fp32 [g] in [0, 1). The next kept tokens behind an evicted one
    (`MERGE_BUDGET` at most) get an equal part of its value each, with a probability of its mass
    over their mean mass, at most 1. Where none is behind it, or all are without mass like itself,
    it is dropped.
    """
    merged = values[kept].clone()
    if not len(kept) or not len(gone):
        return merged
    offsets = torch.arange(MERGE_BUDGET, device=kept.device)
    heirs = torch.searchsorted(kept, gone)[:, None] + offsets  # [g, budget]
    valid = heirs < len(kept)
    heirs = heirs.clamp_(max=len(kept) - 1)
    count = valid.sum(-1)
    mean = (mass[kept][heirs] * valid).sum(-1) / count
    chance = (mass[gone] / mean).nan_to_num_(nan=0.0, posinf=1.0)  # 0 / 0, and x / 0
    goes = (draws < chance) & (count > 0)
    share = goes.to(values.dtype) / count.clamp(min=1)
    parts = (values[gone] * share[:, None])[:, None] * valid[..., None]  # [g, budget, D]
    return merged.index_add_(0, heirs.flatten(), parts.flatten(0, 1))


def keyed_draws(seed: int, request: int, group: int, positions: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), float64 like positions: the same for the same token whenever it is asked.

    Source of the mixing: SplitMix64 (Steele et al. 2014).
    """
    mixed = np.full(positions.shape, seed & (2**64 - 1), np.uint64)
    for part in (np.uint64(request), np.uint64(group), positions.astype(np.uint64)):
        mixed = _mix(mixed + part)
    draws: np.ndarray = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    return draws


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)  # modulo 2**64, as arrays add
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
