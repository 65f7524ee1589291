"""Decode attention: one query a row, K and V read in tiles that stay in the L2 cache.

A tile is a range of M = rows x KV heads; every tile reuses the same buffers, so what a gather wrote
is still in the cache when a product reads it. *Fused*: torch's CPU attention on K and V as they
are. *Folded*: codes go into fp32 products, K scales multiply the scores and V scales the
probabilities; bf16 V stays bf16 beside bf16 queries, as in torch's own attention. Everything but q
is bound once a step. G query heads share a KV head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from kvkernels.api import FormatState, Timers
from kvkernels.formats.plain import BF16
from kvkernels.plan import Batch, Plan
from kvkernels.readers import Metadata, Plane, bind_planes

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
# A thread's product operands of one tile. Fused: a quarter of a common L2 cache, as its CPUs have.
# Folded: its products lose less where operands come from L3 than more and smaller calls cost
# (32 x 512 tokens on Zen 5: a step of 84 ms with 1 << 19, 77 with 1 << 20, 73 with 1 << 21).
FUSED_TILE_BYTES, FOLDED_TILE_BYTES = 1 << 19, 1 << 21


@dataclass(frozen=True)
class Factors:
    """Numbers that scale one layer: of the scores, and of the result."""

    score: float
    out: float

    @staticmethod
    def of(plan: Plan, layer: int, softmax_scale: float, state: FormatState) -> "Factors":
        """Join the softmax scale, the units of codes and the scales shared by a layer."""
        key, value = plan.spec.k, plan.spec.v
        score = 1.0 if plan.tiled else key.code_factor
        out = 1.0 if plan.tiled else value.code_factor
        if key.shared == "tensor" or value.shared == "tensor":
            k_scales, v_scales = plan.shared_scales(state)
            if key.shared == "tensor":
                score *= k_scales[layer]
            if value.shared == "tensor":
                out *= v_scales[layer]
        return Factors(softmax_scale * score, out)


def tiles(count: int, each_bytes: int, tile_bytes: int) -> list[tuple[int, int]]:
    """Cut M = `count` into equal ranges whose operands fit `tile_bytes` a thread."""
    parts = -(-count // max(1, tile_bytes * torch.get_num_threads() // each_bytes))
    size = -(-count // parts)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


class FusedDecode:
    """Decode rows of plain formats (bf16, and fp8 as fp16)."""

    def __init__(self, plan: Plan, batch: Batch, dtype: torch.dtype, whole: bool) -> None:
        """Bind tiles; `whole`: a single one, so that `key` holds every row's K."""
        spec, self._dtype, self._timers = plan.spec, dtype, plan.timers
        self._layer_bytes = spec.layer_bytes
        count = batch.num_rows * spec.num_kv_heads
        slots, dim = batch.num_pages * spec.block_size, spec.head_dim
        self._shape = (count, 1, -1, dim)
        bias = batch.bias
        if bias is not None:
            bias = bias.expand(batch.num_rows, spec.num_kv_heads, 1, -1)
            bias = bias.reshape(count, 1, 1, -1)
        each_bytes = 2 * slots * dim * dtype.itemsize
        cuts = [(0, count)] if whole else tiles(count, each_bytes, FUSED_TILE_BYTES)
        self._tiles = []
        for first, last in cuts:
            planes, (key, value) = bind_planes(
                spec, batch, dtype, (first, last), batch.holes, plan.scratch, joined=True
            )
            key, value = (x[0, :, None, : batch.num_slots] for x in (key, value))
            part = None if bias is None else bias[first:last]
            self._tiles.append((first, last, planes, key, value, part))
        self.key = self._tiles[0][3]

    def run(self, q: Tensor, arena: Tensor, layer: int, factors: Factors) -> tuple[Tensor, Tensor]:
        """q with M * G vectors; returns out [M, 1, G, D] in its dtype and lse [M, 1, G]."""
        query = q.reshape(self._shape).to(self._dtype)
        start, outs, lses = layer * self._layer_bytes, [], []
        for first, last, planes, key, value, bias in self._tiles:
            for plane in planes:
                if plane is not None:
                    plane.read(arena, start, self._timers)
            begun = perf_counter()
            part = query if len(self._tiles) == 1 else query[first:last]
            if bias is not None:
                bias = bias.expand(-1, -1, part.shape[2], -1)
            out, lse = FUSED(part, key, value, 0.0, False, attn_mask=bias, scale=factors.score)
            outs.append(out)
            lses.append(lse)
            self._timers.attention_s += perf_counter() - begun
        out, lse = (x[0] if len(x) == 1 else torch.cat(x) for x in (outs, lses))
        if factors.out != 1.0:  # fp16 could overflow, bf16 would round twice
            out = out.to(torch.float32).mul_(factors.out)
        return out.to(q.dtype), lse


class FoldedDecode:
    """Decode rows of any format: scores in fp32 (torch rounds a bf16 product, too coarse)."""

    def __init__(self, plan: Plan, batch: Batch, share: int, dtype: torch.dtype) -> None:
        """Bind tiles of K, then of V; they take turns in the same buffers unless both fit.

        `dtype` is that of the queries: bf16 V stays as it is where the result becomes bf16 too.
        """
        spec, self._timers, scratch = plan.spec, plan.timers, plan.scratch
        self._layer_bytes = spec.layer_bytes
        count = batch.num_rows * spec.num_kv_heads
        slots, dim = batch.num_pages * spec.block_size, spec.head_dim
        self._metadata = Metadata(spec, batch, scratch)
        self._query = scratch.get("query", (count, share, dim), torch.float32)
        self._scores = scratch.get("scores", (count, share, slots), torch.float32)
        halves = spec.v.num_parts
        self._probs = self._scores
        if spec.v == BF16 and dtype == torch.bfloat16:
            self._probs = scratch.get("probs", (count, share, slots), torch.bfloat16)
        values = self._probs.dtype
        self._out = scratch.get("out", (halves, count, share, dim // halves), values)
        self._tail = None
        if batch.tail_bias is not None:
            rows = self._scores.view(batch.num_rows, -1, slots)
            self._tail = (rows[..., slots - batch.tail_bias.shape[-1] :], batch.tail_bias)
        cuts = tiles(count, slots * dim * 4, FOLDED_TILE_BYTES)
        self._keys: list[_Tile] = []
        self._values: list[_Tile] = []
        for first, last in cuts:
            planes, parts = bind_planes(
                spec, batch, torch.float32, (first, last), batch.tail_holes, scratch,
                joined=len(cuts) == 1, value_dtype=values,
            )  # fmt: skip
            scores, query = self._scores[first:last], self._query[first:last]
            keys = [part.transpose(1, 2) for part in parts[0]]
            queries = query.chunk(len(keys), -1)
            self._keys.append(_Tile(planes[0], scores, list(zip(queries, keys, strict=True))))
            pairs = list(zip(self._out[:, first:last], parts[1], strict=True))
            self._values.append(_Tile(planes[1], self._probs[first:last], pairs))

    def run(
        self,
        q: Tensor,
        arena: Tensor,
        layer: int,
        factors: Factors,
        partial: bool,
        add_mass: Callable[[Tensor], None] | None,
    ) -> tuple[Tensor, Tensor]:
        """q with M * G vectors; returns out [M, G, D] in its dtype and lse [M, G] if `partial`.

        `add_mass` gets the probabilities [M, G, P * S] before they are reused.
        """
        start, scores, out = layer * self._layer_bytes, self._scores, self._out
        self._metadata.read(arena, start, self._timers)
        self._query.copy_(q.reshape(self._query.shape))
        self._score(arena, start, factors.score)
        begun = perf_counter()
        lse = torch.logsumexp(scores, -1) if partial else scores
        torch.softmax(scores, -1, out=scores)
        if add_mass is not None:
            add_mass(scores)
        scale, low = self._metadata.value
        base = None if low is None else torch.bmm(scores, low.transpose(1, 2))  # [M, G, 1]
        if scale is not None:
            scores.mul_(scale)
        if self._probs is not scores:
            self._probs.copy_(scores)
        self._timers.attention_s += perf_counter() - begun
        for tile in self._values:
            tile.read(arena, start, self._timers)
            begun = perf_counter()
            for target, part in tile.pairs:
                torch.bmm(tile.scores, part, out=target)
            self._timers.attention_s += perf_counter() - begun
        if base is not None:
            out.add_(base)
        if factors.out != 1.0:
            out.mul_(factors.out)
        if out.shape[0] == 1:
            return out[0].to(q.dtype, copy=True), lse
        return torch.cat((out[0], out[1]), -1).to(q.dtype), lse

    def _score(self, arena: Tensor, start: int, factor: float) -> None:
        """Fill the scores; K scales and minima come after the product."""
        scores = self._scores
        for tile in self._keys:
            tile.read(arena, start, self._timers)
            begun = perf_counter()
            beta = 0
            for query, part in tile.pairs:
                tile.scores.baddbmm_(query, part, beta=beta, alpha=factor)
                beta = 1
            self._timers.attention_s += perf_counter() - begun
        begun = perf_counter()
        scale, low = self._metadata.key
        if scale is not None:
            scores.mul_(scale)
        if low is not None:
            scores.addcmul_(self._query.sum(-1, keepdim=True), low, value=factor)
        if self._tail is not None:
            rows, bias = self._tail
            rows.add_(bias)
        self._timers.attention_s += perf_counter() - begun


@dataclass(frozen=True)
class _Tile:
    """One plane's tile: what to read, its scores, and the pairs of every product."""

    plane: Plane | None  # None where it was read together with K
    scores: Tensor
    pairs: list[tuple[Tensor, Tensor]]

    def read(self, arena: Tensor, start: int, timers: Timers) -> None:
        """Fill the operands."""
        if self.plane is not None:
            self.plane.read(arena, start, timers)
