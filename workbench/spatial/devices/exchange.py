"""Experts on several ranks: each row travels to its experts' ranks and back.

    rows sorted by expert ─► counts to every rank ─► rows to every rank ─► own experts ─► back

Source: GShard's dispatch and combine (arXiv 2006.16668), without a capacity: nothing is dropped.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.spatial.devices.links import Links
from workbench.spatial.devices.moe import Experts, MoeBlock, route, weighted_sum


class ExchangedBlock(MoeBlock):
    """The MLP of one layer with some experts here and the others on other ranks.

    `held`: how many experts each rank has, in order. Three exchanges a call, with no rows as well.
    """

    def __init__(
        self, router: Tensor, experts: Experts, top_k: int, links: Links, held: Sequence[int]
    ) -> None:
        super().__init__(router, experts, top_k)
        self._links, self._held = links, list(held)
        self._first = sum(self._held[: links.rank])

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [N, hidden], normed, -> the weighted sum of its experts (+ residual)."""
        weights, chosen = route(x, self.router, self.top_k)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)  # by expert, and so by rank
        counts = torch.bincount(flat, minlength=sum(self._held))
        rows = x.index_select(0, order // self.top_k)

        arriving = self._links.exchange_counts(counts, self._held)
        give = [int(part.sum()) for part in counts.split(self._held)]
        take = arriving.sum(1).tolist()
        received = self._links.exchange(rows, give, take)
        out = self.experts(received, self._numbers(arriving))
        back = self._links.exchange(out, take, give)

        placed = torch.empty_like(back)
        placed[order] = back
        result = weighted_sum(placed, weights)
        return result if residual is None else result.add_(residual)

    def _numbers(self, arriving: Tensor) -> Tensor:
        """The expert of each received row, from counts int64 [num_ranks, own]."""
        ranks, own = arriving.shape
        experts = torch.arange(self._first, self._first + own, device=arriving.device)
        return experts.repeat(ranks).repeat_interleave(arriving.flatten())
