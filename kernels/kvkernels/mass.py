"""Attention mass: what each slot was attended to, summed over query rows (CPU path).

Shapes: B rows (request x head group), h KV heads, G query heads each, Q queries, T slots.
"""

import torch
from torch import Tensor

from kvkernels.api import Mass
from kvkernels.plan import Batch, Plan

MAX_SCORES = 1 << 23  # scores held at once while mass is summed


class MassSum:
    """The mass of one `attend`; with `each_head` by query head, else by KV head."""

    def __init__(self, plan: Plan, num_heads: int, each_head: bool) -> None:
        """`num_heads`: query heads."""
        self._plan, self._each_head = plan, each_head
        heads = num_heads // plan.num_head_groups if each_head else plan.spec.num_kv_heads
        slots = plan.num_pages * plan.spec.block_size
        self._total = torch.zeros(plan.num_requests * plan.num_head_groups, heads, slots)

    def add_products(self, query: Tensor, k: Tensor, batch: Batch, scale: float) -> None:
        """Add what query [B, h, G, Q, D] makes of k [B, h, T, D], whose softmax is taken here.

        In tiles of query positions, so that scores stay bounded.
        """
        rows, heads, share, queries, dim = query.shape
        tile = max(1, MAX_SCORES // (rows * heads * share * batch.num_slots))
        keys = k.flatten(0, 1).transpose(1, 2)
        for start in range(0, queries, tile):
            part = slice(start, start + tile)
            flat = query[:, :, :, part].reshape(rows * heads, -1, dim)
            scores = torch.bmm(flat, keys).to(torch.float32).mul_(scale)
            scores = scores.view(rows, heads, share, -1, batch.num_slots)
            if batch.bias is not None:
                bias = batch.bias[:, :, part]
                scores += bias.view(rows, bias.shape[0] // rows, 1, *bias.shape[2:])
            self.add(torch.softmax(scores, -1), batch, part)

    def add(self, probs: Tensor, batch: Batch, queries: slice) -> None:
        """Add probabilities [B, h, G, Q, T]; padding queries are left out."""
        if batch.blind is not None:
            probs = probs.masked_fill(batch.blind[:, None, None, queries, None], 0.0)
        if batch.real is not None:
            probs = probs * batch.real[:, None, None, queries, None]
        sums = probs.sum(3).flatten(1, 2) if self._each_head else probs.sum((2, 3))
        self._total[..., : probs.shape[-1]].index_add_(0, batch.rows, sums)

    def result(self, mass: Mass) -> Tensor:
        """The sum by token [R, H, P * S], or by page [R, H, P]."""
        plan = self._plan
        slots = self._total.view(plan.num_requests, -1, self._total.shape[-1])
        if mass == "token":
            return slots
        return slots.unflatten(-1, (plan.num_pages, plan.spec.block_size)).sum(-1)
