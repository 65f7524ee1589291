"""Attention that future queries are expected to give to stored tokens.

A query is taken as a normal variable, with the mean and covariance that a request's queries had
before RoPE, rotated by the average rotation of the next positions. Then E exp(q.k / sqrt d) =
exp(mean.k / sqrt d + k' cov k / 2d).
Source: Devoto et al., Expected Attention (kvpress): 512 next positions, scores times the length of
the value, first tokens left out of both sides.
"""

from collections.abc import Sequence

import numpy as np
import torch
from kvkernels.common import rotate
from torch import Tensor

NUM_FUTURE = 512  # positions whose rotation is averaged


class QueryStatistics:
    """Mean and scatter of one request's queries before RoPE, by layer and query head.

    mean fp32 [L, Hq, D], scatter fp32 [L, Hq, D, D]: sum of outer products around the mean.
    """

    def __init__(self, num_layers: int, num_heads: int, head_dim: int, device: str) -> None:
        self.mean = torch.zeros(num_layers, num_heads, head_dim, device=device)
        self.scatter = torch.zeros(num_layers, num_heads, head_dim, head_dim, device=device)
        self.num_seen = [0] * num_layers
        self.next_position = 0  # what was computed again after a preemption is not seen twice

    def add(self, layer: int, queries: Tensor) -> None:
        """One layer's queries [n, Hq, D] before RoPE.

        Batches are joined by their means, so that nothing cancels (Chan et al. 1979).
        """
        count = len(queries)
        if not count:
            return
        rows = queries.to(torch.float32).transpose(0, 1)  # [Hq, n, D]
        mean = rows.mean(1)
        around = rows - mean[:, None]
        before = self.num_seen[layer]
        total = before + count
        shift = mean - self.mean[layer]
        self.scatter[layer] += around.transpose(1, 2) @ around
        self.scatter[layer] += shift[:, :, None] * shift[:, None, :] * (before * count / total)
        self.mean[layer] += shift * (count / total)
        self.num_seen[layer] = total

    def future(self, layer: int, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean [Hq, D] and covariance [Hq, D, D] of queries to come; see `mean_rotation`."""
        mean = rotate(self.mean[layer], *rotation)
        half = rotate(self.scatter[layer], *rotation).transpose(1, 2)  # (S R')' = R S
        return mean, rotate(half, *rotation) / max(1, self.num_seen[layer])

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return self.mean.nbytes + self.scatter.nbytes


def mean_rotation(
    frequencies: Sequence[float], first: int, device: str, num_positions: int = NUM_FUTURE
) -> tuple[Tensor, Tensor]:
    """Mean cosine and sine fp32 [D / 2] over the positions from `first` on."""
    angles = np.arange(first, first + num_positions)[:, None] * np.array(frequencies)
    means = (np.cos(angles).mean(0), np.sin(angles).mean(0))
    cos, sin = (torch.from_numpy(part).to(torch.float32).to(device) for part in means)
    return cos, sin


def expected_scores(
    keys: Tensor,
    values: Tensor,
    mean: Tensor,
    covariance: Tensor,
    *,
    log_count: Tensor,
    num_first: int,
    reduce: str,
) -> Tensor:
    """Score fp32 [H, T] of the stored tokens of one layer; the first `num_first` get 0.

    keys, values: fp32 [T, H, D], keys rotated; mean [Hq, D], covariance [Hq, D, D]; log_count
    [T]: of the tokens that a slot stands for. The query heads of a KV head are reduced by
    `reduce`: mean, max or sum.
    """
    count, heads, dim = keys.shape
    k = keys[num_first:].transpose(0, 1)  # [H, t, D]
    mean = mean.unflatten(0, (heads, -1))  # [H, G, D]
    covariance = covariance.unflatten(0, (heads, -1))
    logits = torch.einsum("hgd,htd->hgt", mean, k) / dim**0.5
    spread = k[:, None] @ covariance  # [H, G, t, D]
    logits += (spread * k[:, None]).sum(-1) / (2 * dim)
    shares = reduce_heads(torch.softmax(logits + log_count[num_first:], -1), 1, reduce)
    lengths = torch.linalg.vector_norm(values[num_first:], dim=-1).T  # [H, t]
    scores = torch.zeros(heads, count, device=keys.device)
    scores[:, num_first:] = shares * lengths
    return scores


def reduce_heads(values: Tensor, dim: int, how: str) -> Tensor:
    """Reduce the query heads of a KV head, which lie along `dim`: mean, max or sum."""
    if how == "max":
        return values.amax(dim)
    return values.sum(dim) if how == "sum" else values.mean(dim)
