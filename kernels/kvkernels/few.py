"""Attention of a few bf16 queries of one request: what is left to compute behind a prefix hit.

The same products as in `prefill`, in one tile, with every buffer and view bound once a step: for 16
queries over 1,024 slots the calls in between take as long as the products.
"""

from time import perf_counter

import torch
from torch import Tensor

from kvkernels.decode import Factors
from kvkernels.formats.plain import BF16
from kvkernels.plan import Batch, Plan
from kvkernels.prefill import products_of_bf16
from kvkernels.readers import bind_planes

MOST_QUERIES = 32  # beyond, products are large beside the calls


def takes(plan: Plan, batch: Batch, dtype: torch.dtype) -> bool:
    """Whether a batch is one request of a few bf16 queries on bf16 pages as they are."""
    formats = plan.spec.k == BF16 and plan.spec.v == BF16 and dtype == torch.bfloat16
    alone = batch.num_rows == 1 and 1 < batch.num_queries <= MOST_QUERIES
    plain = plan.rope == "stored" and not plan.tiled
    return formats and alone and plain and batch.blind is None and batch.real is None


class FewQueries:
    """Q queries of G heads for each of h KV heads, over T slots."""

    def __init__(self, plan: Plan, batch: Batch, share: int) -> None:
        """Bind buffers of the plan's scratch; `share` is G."""
        spec, scratch, self._timers = plan.spec, plan.scratch, plan.timers
        self._layer_bytes = spec.layer_bytes
        heads, queries, slots = spec.num_kv_heads, batch.num_queries, batch.num_slots
        dim, rows = spec.head_dim, share * queries
        self._planes, parts = bind_planes(
            spec, batch, torch.bfloat16, (0, heads), batch.holes, scratch, joined=True
        )
        self._raw, self._values = (part[0][:, :slots] for part in parts)
        get, fp32 = scratch.get, torch.float32
        self._keys = get("few.keys", (heads, slots, dim), fp32)
        self._turned = self._keys.transpose(1, 2)
        query = get("few.query", (heads, share, queries, dim), fp32)
        self._query = query.view(heads, rows, dim)
        self._query_rows = query.permute(2, 0, 1, 3)  # as they come
        self._scores = get("few.scores", (heads, rows, slots), fp32)
        self._probs = get("few.probs", (heads, rows, slots), torch.bfloat16)
        self._out = get("few.out", (heads, rows, dim), torch.bfloat16)
        self._out_rows = self._out.view(heads, share, queries, dim).permute(2, 0, 1, 3)
        self._tail = None
        if batch.bias is not None:
            bias = batch.bias[:, 0]  # [1 or h, Q, T]
            first = int((bias != 0).any(0).any(0).nonzero()[0]) if bias.any() else slots - 1
            masked = self._scores.view(heads, share, queries, slots)[..., first:]
            self._tail = (masked, bias[:, None, :, first:].contiguous())

    def run(self, q: Tensor, arena: Tensor, layer: int, factors: Factors) -> Tensor:
        """q with Q * h * G vectors in that order; returns [Q, h * G, D], a new tensor."""
        for plane in self._planes:
            if plane is not None:
                plane.read(arena, layer * self._layer_bytes, self._timers)
        begun = perf_counter()
        self._keys.copy_(self._raw)
        self._query_rows.copy_(q.view(self._query_rows.shape))
        scores = self._scores
        with products_of_bf16():
            torch.baddbmm(
                scores, self._query, self._turned, beta=0, alpha=factors.score, out=scores
            )
        if self._tail is not None:
            self._tail[0].add_(self._tail[1])
        torch.softmax(scores, -1, out=scores)
        self._probs.copy_(scores)
        torch.bmm(self._probs, self._values, out=self._out)
        out = self._out_rows.flatten(1, 2)
        self._timers.attention_s += perf_counter() - begun
        return out
