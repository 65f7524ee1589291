"""A small random Qwen3-MoE decoder: a router and many small MLPs in place of one.

    h ─► router [E] ─► softmax ─► the k largest, normalised to 1 ─► sum of w_e · MLP_e(h)

It runs inside the plain `Decoder`: the block takes the place of `down`, and nothing that of
`gate_up`. Source: Qwen3 technical report (arXiv 2505.09388), transformers' `Qwen3MoeForCausalLM`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from workbench.spatial.devices.moe_arch import MoeArch


def route(h: Tensor, router: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights fp32 and experts int64, [N, top_k] each, of h [N, hidden]; router [E, hidden]."""
    probabilities = functional.linear(h, router).float().softmax(-1)
    weights, chosen = probabilities.topk(top_k, -1)
    return weights / weights.sum(-1, keepdim=True), chosen


class Experts:
    """Some of a layer's experts: gate_up [E', 2 I, hidden] and down [E', hidden, I], from `first`.

    `load` int64 [E'] counts the rows that each has computed.
    """

    def __init__(self, gate_up: Tensor, down: Tensor, first: int) -> None:
        self._gate_up, self._down, self._first = gate_up, down, first
        self.load = torch.zeros(len(down), dtype=torch.int64)
        self.weight_bytes = gate_up.nbytes + down.nbytes

    def __call__(self, rows: Tensor, experts: Tensor) -> Tensor:
        """Each row [N, hidden] through its one expert int64 [N], in the rows' order."""
        out = torch.empty_like(rows)
        local = experts - self._first
        self.load += torch.bincount(local, minlength=len(self.load)).cpu()
        for number in local.unique().tolist():
            at = (local == number).nonzero()[:, 0]
            gate, up = functional.linear(rows[at], self._gate_up[number]).chunk(2, -1)
            out[at] = functional.linear(functional.silu(gate) * up, self._down[number])
        return out


class MoeBlock:
    """The MLP of one layer with all its experts here; called as `Decoder` calls `down`."""

    kind = "fp32"

    def __init__(self, router: Tensor, experts: Experts, top_k: int) -> None:
        self.router, self.experts, self.top_k = router, experts, top_k
        self.in_features = self.out_features = router.shape[1]
        self.weight_bytes = router.nbytes + experts.weight_bytes

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [N, hidden], normed, -> the weighted sum of its experts (+ residual)."""
        weights, chosen = route(x, self.router, self.top_k)
        rows = x.repeat_interleave(self.top_k, 0)
        out = weighted_sum(self.experts(rows, chosen.flatten()), weights)
        return out if residual is None else out.add_(residual)


class NoGate:
    """Takes the place of `gate_up` where an expert block does all of the MLP."""

    kind = "fp32"
    weight_bytes = 0

    def __init__(self, hidden_size: int) -> None:
        self.in_features = self.out_features = hidden_size

    def __call__(self, x: Tensor) -> Tensor:
        """x as it is."""
        return x


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """[N, hidden] of the experts' rows [N * k, hidden] with weights [N, k]."""
    return (rows.unflatten(0, weights.shape) * weights[..., None].to(rows.dtype)).sum(1)


def expert_tensors(
    arch: MoeArch, layer: int, seed: int, held: Sequence[int] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Router [E, hidden], gate_up [E', 2 I, hidden] and down [E', hidden, I] of `held` experts.

    Every expert has a random stream of its own, so that a rank draws only those that it holds.
    """
    hidden, inner = arch.base.hidden_size, arch.base.intermediate_size

    def draw(stream: int, *size: int) -> Tensor:
        make = torch.Generator().manual_seed(seed * 1_000_003 + layer * 4099 + stream)
        return torch.randn(*size, generator=make) * size[-1] ** -0.5

    held = range(arch.num_experts) if held is None else held
    router = 2 * draw(0, arch.num_experts, hidden)
    gate_up = torch.stack([draw(1 + 2 * expert, 2 * inner, hidden) for expert in held])
    down = torch.stack([draw(2 + 2 * expert, hidden, inner) for expert in held])
    return router, gate_up, down
