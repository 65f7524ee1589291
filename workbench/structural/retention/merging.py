"""Merging: what is evicted leaves its value to the kept token with the most similar key.

A slot that stands for n tokens has log n added to its score. So merging tokens with equal keys
changes nothing at all: n exp(s) = exp(s + log n), and their values enter by their weighted mean.
Source: nearest kept key by cosine as in kvpress's MergingPress and D2O; the count is ours.
"""

import torch
from torch import Tensor


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
