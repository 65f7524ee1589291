"""A Llama-family decoder whose attention is supplied by the caller, one step at a time.

token_ids ─► embed ─► [ norm ─► qkv ─► rope ─► attend(layer, q, k, v) ─► o + x
                        norm ─► gate,up ─► silu·mul ─► down + x ] × layers ─► norm ─► head
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from kvkernels.api import Rope
from torch import Tensor

from workbench.model.arch import ModelArch
from workbench.model.weights import Embedding, GatedLinear, Linear

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer; q, k, v and gate, up are fused row-wise."""

    attn_norm: Tensor  # [hidden]
    qkv: Linear
    o: Linear
    mlp_norm: Tensor  # [hidden]
    gate_up: GatedLinear
    down: Linear
    qk_norm: Tensor | None = None  # [num_heads + num_kv_heads, head_dim], Qwen3


@dataclass(frozen=True)
class DecoderWeights:
    """All weights of a decoder in one weight format."""

    embed: Embedding
    layers: tuple[Layer, ...]
    final_norm: Tensor  # [hidden]
    head: Linear
    head_shares_embedding: bool  # the same bytes serve both; count them once


class Decoder:
    """Runs one batch of tokens through all layers; holds weights, no cache.

    `fingerprint` (SHA-256 hex) names the weights and their format; `weight_bytes` counts resident
    weights; `compute_dtype` is the dtype of q, k, v. With `schedule_dependent` the result varies
    with the number of rows in a step (weight format `auto`).
    """

    def __init__(
        self,
        arch: ModelArch,
        weights: DecoderWeights,
        *,
        weight_format: str,
        fingerprint: str,
        compute_dtype: torch.dtype,
        device: str = "cpu",
        schedule_dependent: bool = False,
    ) -> None:
        self.arch = arch
        self.weight_format = weight_format
        self.fingerprint = fingerprint
        self.compute_dtype = compute_dtype
        self.device = device
        self.schedule_dependent = schedule_dependent
        self.weight_bytes = count_bytes(weights)
        self._weights = weights
        self._eps = torch.tensor(arch.rms_eps, device=device)
        self._cos = torch.empty(0)
        self._sin = torch.empty(0)
        self.reserve_positions(min(arch.max_position, 4096))

    def rope_tables(self, max_len: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine fp32 [max_len, head_dim / 2] of position times frequency."""
        frequencies = torch.tensor(self.arch.inverse_frequencies(), dtype=torch.float64)
        angles = torch.arange(max_len, dtype=torch.float64)[:, None] * frequencies
        return angles.cos().float().to(self.device), angles.sin().float().to(self.device)

    def reserve_positions(self, max_len: int) -> None:
        """Make the rotation tables long enough for positions below `max_len`."""
        if max_len <= self._cos.shape[0]:
            return
        cos, sin = self.rope_tables(max_len)
        # rotate_half(x) = roll(x, D/2) with the first half negated; the sign lives in the table.
        self._cos = torch.cat([cos, cos], dim=-1)[:, None].to(self.compute_dtype)  # [P, 1, D]
        self._sin = torch.cat([-sin, sin], dim=-1)[:, None].to(self.compute_dtype)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        logit_rows: Tensor,
        *,
        rope: Rope = "stored",
    ) -> Tensor:
        """Logits fp32 [M, vocab_size] of the rows `logit_rows` int64 [M].

        token_ids and positions int64 [N]. `attend(layer, q, k, v)` gets q [N, num_heads, head_dim]
        and k, v [N, num_kv_heads, head_dim] (views, rows strided), stores k and v where it
        likes and returns [N, num_heads * head_dim]. With `rope` = stored q and k come rotated; with
        at_read they come as projected, and `attend` rotates them.
        """
        arch, weights = self.arch, self._weights
        rotation = self._rotation(positions) if rope == "stored" else None
        x = weights.embed(token_ids)  # [N, hidden]
        last = arch.num_layers - 1
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(layer, x, rotation)
            mixed = attend(index, q, k, v).contiguous()  # packed kernels take nothing else
            if index == last:
                # Nothing after the last attention mixes tokens: go on with the wanted rows only.
                mixed, x = mixed.index_select(0, logit_rows), x.index_select(0, logit_rows)
            if x.shape[0] == 0:
                break
            x = layer.o(mixed, x)
            h = rms_norm(x, layer.mlp_norm, self._eps)
            x = layer.down(layer.gate_up(h), x)
        if x.shape[0] == 0:
            return torch.empty(0, arch.vocab_size, device=x.device)
        return weights.head(rms_norm(x, weights.final_norm, self._eps)).float()

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if positions.device.type == "cpu" and positions.numel():
            self.reserve_positions(int(positions.max()) + 1)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def _project(
        self, layer: Layer, x: Tensor, rotation: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        arch = self.arch
        h = rms_norm(x, layer.attn_norm, self._eps)
        rotated = arch.num_heads + arch.num_kv_heads
        qkv = layer.qkv(h).view(x.shape[0], rotated + arch.num_kv_heads, arch.head_dim)  # [N, H, D]
        qk = qkv[:, :rotated]
        if layer.qk_norm is not None:
            qk = rms_norm(qk, layer.qk_norm, self._eps)
        if rotation is not None:
            qk = apply_rope(qk, *rotation)
        return qk[:, : arch.num_heads], qk[:, arch.num_heads :], qkv[:, rotated:]


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """x over its root mean square along the last axis, times weight; computed in fp32.

    Fewer passes over x than torch's own, which copies five times in bf16.
    """
    exact = x.float()
    norm = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
    factor = torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
    scaled = torch.mul(exact, factor) if exact is x else exact.mul_(factor)
    return scaled.to(x.dtype).mul_(weight)


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate halves: x [N, heads, D] with tables [N, 1, D], the sine's first half negated."""
    return torch.mul(x, cos).addcmul_(torch.roll(x, x.shape[-1] // 2, -1), signed_sin)


def count_bytes(weights: DecoderWeights) -> int:
    """Resident bytes of all weights; a head that shares the embedding's storage counts once."""
    total = weights.final_norm.nbytes + weights.head.weight_bytes
    if not weights.head_shares_embedding:
        total += weights.embed.table_bytes
    for layer in weights.layers:
        total += layer.attn_norm.nbytes + layer.mlp_norm.nbytes
        total += 0 if layer.qk_norm is None else layer.qk_norm.nbytes
        total += sum(part.weight_bytes for part in (layer.qkv, layer.o, layer.gate_up, layer.down))
    return total
