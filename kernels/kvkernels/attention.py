"""Paged attention in torch: gather, dequantise, two products a batch, no loop over requests.

Two paths. *Dense*: K and V become one dtype and the fused CPU kernel runs. *Folded* (int8 and int4
decode): codes go into the products as they are, K scales multiply the scores, V scales the
probabilities. Shapes: B rows (request x head group), h KV heads, G query heads each, Q queries,
T slots.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from kvkernels.api import AttentionResult, FormatState, Mass, RopeTable
from kvkernels.codec import fp8_bits_to_half
from kvkernels.layout import FORMATS, PageSpec
from kvkernels.plan import DTYPES, Batch, Plan, PlaneIndex

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
MAX_SCORES = 1 << 23  # scores held at once by the explicit path


class _Raw(NamedTuple):
    """A gathered plane: data [planes, B, h, T, row elements], metadata fp32 [M, B, h, T]."""

    fmt: str
    data: Tensor
    meta: Tensor | None


class _Codes(NamedTuple):
    """A plane ready for a product: [parts, B * h, T, D / parts], value = factor * code * scale + low."""

    parts: Tensor
    scale: Tensor | None  # fp32 [B * h, 1, T]
    low: Tensor | None
    factor: float


def attend(
    q: Tensor,
    arena: Tensor,
    plan: Plan,
    layer: int,
    *,
    softmax_scale: float,
    state: FormatState,
    mass: Mass = None,
    partial: bool = False,
) -> AttentionResult:
    """Attend q [N, Hq, D] (bf16 or fp32) to the pages of `plan`; see `AttentionResult`.

    Query head i uses KV head i // (Hq / Hkv). Arithmetic follows the dtype of q; softmax is fp32.
    Padding and unwritten slots are never read into a result, whatever bytes they hold.
    """
    spec, groups = plan.spec, plan.num_head_groups
    tokens, num_heads, dim = q.shape
    share = num_heads // (groups * spec.num_kv_heads)
    rows = q.reshape(tokens * groups, spec.num_kv_heads * share, dim)
    out = lse = None
    if not plan.covers_all:
        out = q.new_zeros(rows.shape)
        lse = torch.full(rows.shape[:2], float("-inf")) if partial else None
    total = _new_mass(plan, mass)
    for batch in plan.batches:
        part = _attend_batch(rows, arena, plan, batch, layer, softmax_scale, state, total, partial)
        if plan.covers_all:
            out, lse = part
        else:
            _place(out, part[0], batch)
            if lse is not None:
                _place(lse, part[1], batch)
    assert out is not None
    return AttentionResult(
        out.reshape(tokens, num_heads * dim),
        lse.reshape(tokens, num_heads) if partial and lse is not None else None,
        _finish_mass(plan, total, mass),
    )


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


def _place(target: Tensor, values: Tensor, batch: Batch) -> None:
    if batch.out_picks is not None:
        values = values.index_select(0, batch.out_picks)
    if batch.out_rows is None:
        target.copy_(values)
    else:
        target.index_copy_(0, batch.out_rows, values)


def _span(plan: Plan, part: str):  # type: ignore[no-untyped-def]
    return nullcontext() if plan.timers is None else plan.timers.span(part)  # type: ignore[arg-type]


def _attend_batch(
    rows: Tensor,
    arena: Tensor,
    plan: Plan,
    batch: Batch,
    layer: int,
    softmax_scale: float,
    state: FormatState,
    total: Tensor | None,
    partial: bool,
) -> tuple[Tensor, Tensor]:
    """Return out [B * Q, h * G, D] and lse [B * Q, h * G] (empty unless `partial`)."""
    spec = plan.spec
    with _span(plan, "gather"):
        key, value = _gather(arena, plan, batch, layer)
    query = _queries(rows, batch, spec, plan.rope_table)  # [B, h, G, Q, D]
    meta = key.meta is not None or value.meta is not None
    if batch.num_queries == 1 and plan.rope == "stored" and meta:
        result = _folded(
            query, key, value, plan, batch, layer, softmax_scale, state, total, partial
        )
    else:
        result = _dense(query, key, value, plan, batch, layer, softmax_scale, state, total, partial)
    out, lse = result  # [B, h, G, Q, D], [B, h, G, Q]
    if batch.blind is not None:
        blind = batch.blind[:, None, None, :]
        out = out.masked_fill(blind[..., None], 0.0)
        lse = lse.masked_fill(blind, float("-inf")) if partial else lse
    count = batch.num_rows * batch.num_queries
    out = out.permute(0, 3, 1, 2, 4).reshape(count, -1, spec.head_dim).to(rows.dtype)
    return out, lse.permute(0, 3, 1, 2).reshape(count, -1) if partial else lse


def _queries(rows: Tensor, batch: Batch, spec: PageSpec, table: RopeTable | None) -> Tensor:
    """Pick a batch's queries: [B, h, G, Q, D]."""
    picked = (
        rows[batch.queries]
        if isinstance(batch.queries, slice)
        else rows.index_select(0, batch.queries)
    )
    if batch.query_pos is not None and table is not None:
        cos, sin = (t[batch.query_pos][:, None, :] for t in table)
        picked = rotate(picked.to(torch.float32), cos, sin).to(rows.dtype)
    shape = (batch.num_rows, batch.num_queries, spec.num_kv_heads, -1, spec.head_dim)
    return picked.view(shape).permute(0, 2, 3, 1, 4)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate dims (i, i + D/2) of x [..., D] by angles given as cos, sin [..., D / 2]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _gather(arena: Tensor, plan: Plan, batch: Batch, layer: int) -> tuple[_Raw, _Raw]:
    """Read K and V of a batch; unwritten slots of float planes and of metadata become zero."""
    raws = []
    for number, plane in enumerate(batch.planes):
        data = _gather_data(arena, plan, batch, plane, layer, f"gather{number}")
        meta = _gather_meta(arena, plan, batch, plane, layer)
        kinds = FORMATS[plane.fmt].meta
        for i in range(plane.planes):
            own = None if meta is None else meta[i * kinds : (i + 1) * kinds]
            raws.append(_Raw(plane.fmt, data[i : i + 1], own))
    return raws[0], raws[1]


def _gather_data(
    arena: Tensor, plan: Plan, batch: Batch, plane: PlaneIndex, layer: int, name: str
) -> Tensor:
    spec, dtype = plan.spec, DTYPES[plane.fmt]
    row = spec.head_dim * FORMATS[plane.fmt].bits // 8 // dtype.itemsize
    source = chunk_view(arena, dtype, layer * spec.layer_bytes, spec.block_size * row)
    chunks = plane.data.numel()
    out = plan.scratch.get(name, (chunks, spec.block_size * row), dtype)
    torch.index_select(source, 0, plane.data, out=out)
    padded = batch.num_pages * spec.block_size
    if batch.holes is not None and dtype.is_floating_point:
        flat = out.view(plane.planes, -1, row)
        for i in range(plane.planes):
            flat[i].index_fill_(0, batch.holes, 0.0)
    full = out.view(plane.planes, batch.num_rows, spec.num_kv_heads, padded, row)
    return full if padded == batch.num_slots else full[:, :, :, : batch.num_slots]


def _gather_meta(
    arena: Tensor, plan: Plan, batch: Batch, plane: PlaneIndex, layer: int
) -> Tensor | None:
    if plane.meta is None:
        return None
    spec = plan.spec
    source = chunk_view(arena, torch.float16, layer * spec.layer_bytes, spec.block_size)
    picked = source.index_select(0, plane.meta).to(torch.float32)
    meta = picked.view(-1, batch.num_rows, spec.num_kv_heads, batch.num_pages * spec.block_size)
    meta = meta[..., : batch.num_slots]
    return meta if batch.live is None else torch.where(batch.live, meta, 0.0)


def chunk_view(arena: Tensor, dtype: torch.dtype, start: int, width: int) -> Tensor:
    """View the arena from byte `start` as overlapping rows of `width` elements, one per element."""
    typed = arena.view(dtype)
    first = start // dtype.itemsize
    count = typed.numel() - first - width + 1
    return typed.as_strided((count, width), (1, 1), typed.storage_offset() + first)


def _codes(raw: _Raw, plan: Plan, batch: Batch, dtype: torch.dtype, name: str) -> _Codes:
    """Turn a gathered plane into product operands of `dtype`, scales kept apart."""
    heads = batch.num_rows * plan.spec.num_kv_heads
    data = raw.data
    factor = 1.0
    if raw.fmt == "int4":
        shape = (2, *data.shape[1:])
        halves = plan.scratch.get(f"{name}.nibbles", shape, torch.uint8)
        torch.bitwise_and(data[0], 15, out=halves[0])
        torch.bitwise_right_shift(data[0], 4, out=halves[1])
        data = halves
    elif raw.fmt == "fp8_e4m3":
        data = fp8_bits_to_half(data, plan.scratch.get(f"{name}.bits", data.shape, torch.int16))
        factor = 256.0
    if data.dtype != dtype:
        data = plan.scratch.get(f"{name}.{dtype}", data.shape, dtype).copy_(data)
    parts = data.reshape(data.shape[0], heads, batch.num_slots, -1)
    if raw.meta is None:
        return _Codes(parts, None, None, factor)
    meta = raw.meta.reshape(-1, heads, 1, batch.num_slots)
    return _Codes(parts, meta[0], meta[1] if len(meta) > 1 else None, factor)


def _values(raw: _Raw, plan: Plan, batch: Batch, dtype: torch.dtype, name: str) -> Tensor:
    """Dequantise a plane to `dtype`: [B, h, T, D]; fp8 keeps its shared scale and 256 outside."""
    codes = _codes(raw, plan, batch, dtype, name)
    parts = codes.parts
    if codes.scale is not None:
        parts = parts * codes.scale.transpose(1, 2).to(dtype)
        if codes.low is not None:
            parts = parts + codes.low.transpose(1, 2).to(dtype)
    whole = parts[0] if parts.shape[0] == 1 else torch.cat([parts[0], parts[1]], -1)
    return whole.view(batch.num_rows, -1, batch.num_slots, plan.spec.head_dim)


def _shared(fmt: str, scale: Tensor, layer: int) -> float:
    return 256.0 * float(scale[layer]) if FORMATS[fmt].shared_scale else 1.0


def _dense(
    query: Tensor,
    key: _Raw,
    value: _Raw,
    plan: Plan,
    batch: Batch,
    layer: int,
    softmax_scale: float,
    state: FormatState,
    total: Tensor | None,
    partial: bool,
) -> tuple[Tensor, Tensor]:
    dtype = _dense_dtype(query.dtype, key.fmt, value.fmt)
    with _span(plan, "dequant"):
        k = _values(key, plan, batch, dtype, "k")  # [B, h, T, D]
        v = _values(value, plan, batch, dtype, "v")
        if batch.pos is not None and plan.rope_table is not None:
            cos, sin = (t[batch.pos][:, None] for t in plan.rope_table)  # [B, 1, T, D / 2]
            k = rotate(k.to(torch.float32), cos, sin).to(dtype)
    k_factor = _shared(key.fmt, state.k_scale, layer)
    v_factor = _shared(value.fmt, state.v_scale, layer)
    with _span(plan, "attention"):
        # the shared K scale goes into q, so that it also serves an fp16 product
        scaled = query if k_factor == 1.0 else query * k_factor
        scaled = scaled.to(dtype)
        out, lse = _fused(scaled, k, v, batch, softmax_scale)
        if v_factor != 1.0:
            out = out.to(torch.float32) * v_factor
        if total is not None:
            _dense_mass(scaled, k, batch, softmax_scale, total)
    return out, lse


def _dense_dtype(query: torch.dtype, k_format: str, v_format: str) -> torch.dtype:
    """fp32 where q or a page is fp32; fp16 where both planes are fp8 (exact there); else bf16."""
    if query == torch.float32 or "fp32" in (k_format, v_format):
        return torch.float32
    return torch.float16 if k_format == v_format == "fp8_e4m3" else torch.bfloat16


def _fused(
    query: Tensor, k: Tensor, v: Tensor, batch: Batch, scale: float
) -> tuple[Tensor, Tensor]:
    """Run torch's fused CPU attention; returns [B, h, G, Q, D] and lse [B, h, G, Q]."""
    rows, heads, share, queries, dim = query.shape
    slots = batch.num_slots
    if queries == 1:  # the query heads of a KV head take the place of query positions
        bias = None if batch.bias is None else batch.bias.expand(rows, heads, share, slots)
        flat = query.reshape(rows, heads, share, dim)
        out, lse = FUSED(flat, k, v, attn_mask=bias, scale=scale)
        return out[..., None, :], lse[..., None]
    merged = rows * heads
    flat = query.reshape(merged, share, queries, dim)
    k = k.reshape(merged, 1, slots, dim).expand(merged, share, slots, dim)
    v = v.reshape(merged, 1, slots, dim).expand(merged, share, slots, dim)
    bias = None if batch.bias is None else batch.bias.expand(merged, share, queries, slots)
    out, lse = FUSED(flat, k, v, attn_mask=bias, scale=scale)
    return out.view(query.shape), lse.view(query.shape[:-1])


def _dense_mass(query: Tensor, k: Tensor, batch: Batch, scale: float, total: Tensor) -> None:
    """Add each slot's attention, in tiles of query positions so that scores stay bounded."""
    rows, heads, share, queries, dim = query.shape
    tile = max(1, MAX_SCORES // (rows * heads * share * batch.num_slots))
    keys = k.reshape(rows * heads, batch.num_slots, dim).transpose(1, 2)
    for start in range(0, queries, tile):
        part = query[:, :, :, start : start + tile]
        flat = part.reshape(rows * heads, -1, dim)
        scores = torch.bmm(flat, keys).to(torch.float32).mul_(scale)
        scores = scores.view(rows, heads, share, -1, batch.num_slots)
        if batch.bias is not None:
            scores += _bias_for(batch, heads, slice(start, start + tile))
        _add_mass(torch.softmax(scores, -1), batch, slice(start, start + tile), total)


def _bias_for(batch: Batch, heads: int, queries: slice) -> Tensor:
    """The bias as [B, h or 1, 1, Q, T]."""
    assert batch.bias is not None
    bias = batch.bias[:, :, queries]
    per_head = bias.shape[0] != batch.num_rows
    return bias.view(batch.num_rows, heads if per_head else 1, 1, *bias.shape[2:])


def _folded(
    query: Tensor,
    key: _Raw,
    value: _Raw,
    plan: Plan,
    batch: Batch,
    layer: int,
    softmax_scale: float,
    state: FormatState,
    total: Tensor | None,
    partial: bool,
) -> tuple[Tensor, Tensor]:
    rows, heads, share, _, dim = query.shape
    # scores need fp32: torch rounds a bf16 product to bf16, worse than int8 itself
    v_type = torch.float32 if "fp32" in (value.fmt,) else query.dtype
    with _span(plan, "dequant"):
        k = _codes(key, plan, batch, torch.float32, "k")
        v = _codes(value, plan, batch, v_type, "v")
    with _span(plan, "attention"):
        flat = query.reshape(rows * heads, share, dim).to(torch.float32)
        factor = softmax_scale * k.factor * (_shared(key.fmt, state.k_scale, layer) / k.factor)
        scores = _scores(flat * factor, k)  # [B * h, G, T]
        if batch.bias is not None:
            scores = scores.view(rows, heads, share, -1).add_(batch.bias).view(scores.shape)
        lse = torch.logsumexp(scores, -1) if partial else scores
        probs = torch.softmax(scores, -1)
        if total is not None:
            _add_mass(probs.view(rows, heads, share, 1, -1), batch, slice(0, 1), total)
        out = _weighted(probs, v)
        v_factor = _shared(value.fmt, state.v_scale, layer)
        if v_factor != 1.0:
            out = out.to(torch.float32) * v_factor
    shape = (rows, heads, share, 1)
    return out.view(*shape, dim), lse.view(shape) if partial else lse


def _scores(query: Tensor, k: _Codes) -> Tensor:
    """q [B * h, G, D] times K, fp32 [B * h, G, T]; scale and minimum after the product."""
    parts = k.parts.shape[0]
    if parts == 1:
        scores = torch.bmm(query, k.parts[0].transpose(1, 2))
    else:
        batch, share, dim = query.shape
        split = query.view(batch, share, parts, dim // parts)
        flat = split.permute(2, 0, 1, 3).reshape(parts * batch, share, -1)
        scores = torch.bmm(flat, k.parts.flatten(0, 1).transpose(1, 2)).view(
            parts, batch, share, -1
        )
        scores = scores[0].add_(scores[1])
    if k.scale is not None:
        scores.mul_(k.scale)
    if k.low is not None:
        scores.addcmul_(query.sum(-1, keepdim=True), k.low)
    return scores


def _weighted(probs: Tensor, v: _Codes) -> Tensor:
    """Probabilities fp32 [B * h, G, T] times V: [B * h, G, D]."""
    parts, batch = v.parts.shape[0], probs.shape[0]
    weights = probs if v.scale is None else probs * v.scale
    weights = weights.to(v.parts.dtype)
    if parts == 1:
        out = torch.bmm(weights, v.parts[0])
    else:
        both = weights.expand(parts, *weights.shape).reshape(parts * batch, *weights.shape[1:])
        halves = torch.bmm(both, v.parts.flatten(0, 1)).view(parts, batch, weights.shape[1], -1)
        out = torch.cat([halves[0], halves[1]], -1)
    if v.low is not None:
        out = out + (probs * v.low).sum(-1, keepdim=True)
    return out


def _new_mass(plan: Plan, mass: Mass) -> Tensor | None:
    if mass is None:
        return None
    slots = plan.num_pages * plan.spec.block_size
    return torch.zeros(plan.num_requests * plan.num_head_groups, plan.spec.num_kv_heads, slots)


def _add_mass(probs: Tensor, batch: Batch, queries: slice, total: Tensor) -> None:
    """Add probabilities [B, h, G, Q, T] to total [rows, h, P * S], padding queries left out."""
    if batch.blind is not None:
        probs = probs.masked_fill(batch.blind[:, None, None, queries, None], 0.0)
    if batch.real is not None:
        probs = probs * batch.real[:, None, None, queries, None]
    target = total[..., : batch.num_slots]
    target.index_add_(0, batch.rows, probs.sum((2, 3)))


def _finish_mass(plan: Plan, total: Tensor | None, mass: Mass) -> Tensor | None:
    if total is None:
        return None
    slots = total.view(plan.num_requests, -1, total.shape[-1])  # [R, Hkv, P * S]
    if mass == "token":
        return slots
    return slots.unflatten(-1, (plan.num_pages, plan.spec.block_size)).sum(-1)
