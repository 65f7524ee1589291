"""Attention of many bf16 queries on a CPU that has no tiles for bf16.

There torch's fused kernel is slower than matrix products: 10.8 against 5.6 ms for 1,024 tokens
of nine heads, 0.24 against 0.17 ms for one query of eight requests at 544 (two Zen 5 cores, torch
2.13). Scores are sums in fp32 of products of bf16 numbers and probabilities are bf16, as in the
fused kernel. A tile is a range of M = rows x KV heads and a range of queries, so that its scores
stay near the caches.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kvkernels.api import Scratch

BF16_TILES = torch.cpu._is_amx_tile_supported()
TILE_QUERIES = 128
TILE_BYTES = 1 << 23  # of a thread's scores; smaller tiles split a product too finely


def attend_products(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *,
    scale: float,
    causal: bool,
    partial: bool,
    scratch: Scratch,
) -> tuple[Tensor, Tensor]:
    """Out bf16 [M, G, Q, D] and lse fp32 [M, G, Q] (unset unless `partial`).

    query bf16 [M, G, Q, D]; k, v bf16 [M, T, D]; bias fp32 [M or 1, 1, Q, T] or None. `causal`:
    query i sees slots up to i, and T = Q.
    """
    count, share, queries, dim = query.shape
    slots = k.shape[1]
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    lse = torch.empty(count, share, queries)
    rows = min(TILE_QUERIES, queries)
    mask = _above_diagonal(rows) if causal else None
    size = max(1, TILE_BYTES * torch.get_num_threads() // (share * rows * slots * 4))
    for first in range(0, count, size):
        part = slice(first, min(first + size, count))
        keys, values = k[part].to(torch.float32).transpose(1, 2), v[part]
        some = None if bias is None else bias[part] if bias.shape[0] > 1 else bias
        for begin in range(0, queries, rows):
            end = min(begin + rows, queries)
            seen = end if causal else slots
            shape = (keys.shape[0], share, end - begin, seen)
            scores = scratch.get("prefill.scores", shape, torch.float32)
            flat = scores.view(shape[0], -1, seen)
            wide = query[part, :, begin:end].to(torch.float32).reshape(shape[0], -1, dim)
            with products_of_bf16():
                torch.baddbmm(flat, wide, keys[..., :seen], beta=0, alpha=scale, out=flat)
            if mask is not None:
                scores[..., begin:].add_(mask[: end - begin, : end - begin])
            elif some is not None:
                scores.add_(some[:, :, begin:end])
            if partial:
                lse[part, :, begin:end] = torch.logsumexp(scores, -1)
            torch.softmax(scores, -1, out=scores)
            probs = scratch.get("prefill.probs", tuple(flat.shape), torch.bfloat16).copy_(flat)
            found = torch.bmm(probs, values[:, :seen])
            out[part, :, begin:end] = found.view(shape[0], share, -1, dim)
    return out, lse


@contextmanager
def products_of_bf16() -> Iterator[None]:
    """Numbers in fp32 that are bf16 numbers are multiplied as such, and summed in fp32: exact.

    torch multiplies bf16 tensors as fast but rounds the sums to bf16, too coarse for scores.
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _above_diagonal(size: int) -> Tensor:
    """Minus infinity where a slot is newer than the query: fp32 [size, size]."""
    return torch.full((size, size), float("-inf")).triu_(1)
