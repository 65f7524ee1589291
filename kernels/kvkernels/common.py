"""Small tensor functions that both backends use as they are."""

import torch
from torch import Tensor

from kvkernels.api import AttentionResult


def merge(parts: list[AttentionResult]) -> Tensor:
    """Merge attention over disjoint slot sets exactly; all parts made with partial=True.

    Returns [N, Hq * D] in the dtype of the parts. Source: online softmax (Milakov 2018).
    """
    if len(parts) == 1:
        return parts[0].out
    lse = torch.stack([_lse(part) for part in parts])  # [C, N, Hq]
    top = lse.amax(0)
    weight = torch.exp(lse - torch.where(torch.isfinite(top), top, 0.0))
    weight /= weight.sum(0).clamp_min(1e-30)
    tokens, heads = top.shape
    total = torch.zeros(tokens, heads, parts[0].out.shape[1] // heads, device=top.device)
    for part, share in zip(parts, weight, strict=True):
        total.addcmul_(part.out.view(total.shape).to(torch.float32), share[..., None])
    return total.to(parts[0].out.dtype).flatten(1)


def _lse(part: AttentionResult) -> Tensor:
    if part.lse is None:
        raise ValueError("merge needs results made with partial=True")
    return part.lse


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate dims (i, i + D/2) of x [..., D] by angles given as cos, sin [..., D / 2]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
