"""Paged attention in torch: two products a batch of rows, no loop over requests.

Two paths. *Dense*: K and V become one dtype and torch's fused CPU kernel runs. *Folded* (int8 and
int4 decode): codes go into the products as they are, K scales multiply the scores and V scales the
probabilities. Shapes: B rows (request x head group), h KV heads, G query heads each, Q queries,
T slots.
"""

import torch
from torch import Tensor

from kvkernels.api import AttentionResult, FormatState, Mass, span
from kvkernels.common import rotate
from kvkernels.layout import FORMATS, PageSpec
from kvkernels.plan import Batch, Plan
from kvkernels.readers import Operand, Reader

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
MAX_SCORES = 1 << 23  # scores held at once while mass is summed


class Call:
    """Arguments of one `attend` that every batch needs."""

    def __init__(
        self, plan: Plan, layer: int, scale: float, state: FormatState, partial: bool
    ) -> None:
        """Fold the shared scales of the layer into two factors."""
        spec = plan.spec
        self.plan, self.layer, self.partial = plan, layer, partial
        # fp8 codes are read as value / 256
        self.k_scale = float(state.k_scale[layer]) if FORMATS[spec.k_format].shared_scale else 1.0
        self.score_scale = scale * (256.0 if FORMATS[spec.k_format].shared_scale else 1.0)
        shared = FORMATS[spec.v_format].shared_scale
        self.v_scale = 256.0 * float(state.v_scale[layer]) if shared else 1.0
        self.mass: Tensor | None = None


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
    tokens, num_heads, dim = q.shape
    rows = q.reshape(tokens * plan.num_head_groups, -1, dim)  # [N * groups, h * G, D]
    call = Call(plan, layer, softmax_scale, state, partial)
    if mass is not None:
        slots = plan.num_pages * plan.spec.block_size
        call.mass = torch.zeros(
            plan.num_requests * plan.num_head_groups, plan.spec.num_kv_heads, slots
        )
    if plan.covers_all:
        out, lse = _attend_batch(rows, arena, call, plan.batches[0])
    else:
        out = q.new_zeros(rows.shape)
        lse = torch.full(rows.shape[:2], float("-inf"))
        for batch in plan.batches:
            part_out, part_lse = _attend_batch(rows, arena, call, batch)
            _place(out, part_out, batch)
            if partial:
                _place(lse, part_lse, batch)
    return AttentionResult(
        out.reshape(tokens, num_heads * dim),
        lse.reshape(tokens, num_heads) if partial else None,
        _finish_mass(plan, call.mass, mass),
    )


def _place(target: Tensor, values: Tensor, batch: Batch) -> None:
    if batch.out_picks is not None:
        values = values.index_select(0, batch.out_picks)
    if batch.out_rows is None:
        target.copy_(values)
    else:
        target.index_copy_(0, batch.out_rows, values)


def _attend_batch(rows: Tensor, arena: Tensor, call: Call, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return out [B * Q, h * G, D] and lse [B * Q, h * G] (meaningless unless `partial`)."""
    plan = call.plan
    reader = _reader(plan, batch, rows.dtype)
    reader.read(arena, call.layer)
    query = _queries(rows, batch, plan)  # [B, h, G, Q, D]
    with span(plan.timers, "attention"):
        if reader.folds:
            out, lse = _folded(query, reader, call, batch)
        else:
            out, lse = _dense(query, reader, call, batch)
        if call.v_scale != 1.0:
            out = out * call.v_scale if out.dtype == torch.float32 else _scale(out, call.v_scale)
    count = batch.num_rows * batch.num_queries
    if batch.blind is not None:
        blind = batch.blind[:, None, None, :]
        out = out.masked_fill(blind[..., None], 0.0)
        lse = lse.masked_fill(blind, float("-inf"))
    if batch.num_queries > 1:
        out, lse = out.permute(0, 3, 1, 2, 4), lse.permute(0, 3, 1, 2)
    return out.reshape(count, -1, plan.spec.head_dim).to(rows.dtype), lse.reshape(count, -1)


def _scale(out: Tensor, factor: float) -> Tensor:
    return out.to(torch.float32).mul_(factor)  # fp16 could overflow, bf16 would round twice


def _reader(plan: Plan, batch: Batch, query: torch.dtype) -> Reader:
    """Bind a reader to the batch on first use; the layers of the step share it."""
    key = (id(batch), query)
    reader = plan.readers.get(key)
    if reader is None:
        spec = plan.spec
        dtype = _dense_dtype(query, spec, batch.num_queries)
        plain = batch.meta is None and dtype != torch.float32
        folds = batch.num_queries == 1 and plan.rope == "stored" and not plain
        if folds:
            # torch rounds a bf16 product to bf16, coarser than int8 itself, and is no faster at it
            dtype = torch.float32
        reader = Reader(spec, batch, dtype, folds, plan.scratch, plan.timers)
        plan.readers[key] = reader
    return reader


def _dense_dtype(query: torch.dtype, spec: PageSpec, num_queries: int) -> torch.dtype:
    """fp32 where q or a page is fp32; fp16 for fp8 decode (no cast is needed); else bf16.

    Both hold fp8 exactly; large bf16 products are faster where the CPU has tiles for them.
    """
    formats = (spec.k_format, spec.v_format)
    if query == torch.float32 or "fp32" in formats:
        return torch.float32
    decodes_fp8 = formats == ("fp8_e4m3", "fp8_e4m3") and num_queries == 1
    return torch.float16 if decodes_fp8 else torch.bfloat16


def _queries(rows: Tensor, batch: Batch, plan: Plan) -> Tensor:
    """Pick a batch's queries: [B, h, G, Q, D]."""
    spec = plan.spec
    if plan.covers_all and batch.num_queries == 1 and batch.query_pos is None:
        return rows.view(batch.num_rows, spec.num_kv_heads, -1, 1, spec.head_dim)
    if isinstance(batch.queries, slice):
        picked = rows[batch.queries]
    else:
        picked = rows.index_select(0, batch.queries)
    if batch.query_pos is not None and plan.rope_table is not None:
        cos, sin = (table[batch.query_pos][:, None, :] for table in plan.rope_table)
        picked = rotate(picked.to(torch.float32), cos, sin).to(rows.dtype)
    shape = (batch.num_rows, batch.num_queries, spec.num_kv_heads, -1, spec.head_dim)
    return picked.reshape(shape).permute(0, 2, 3, 1, 4)


def _values(operand: Operand, batch: Batch) -> Tensor:
    """Apply per-token scales: [B, h, T, D] in the operand's dtype."""
    parts = operand.parts
    dtype = parts.dtype
    if operand.scale is not None:
        wide = parts * operand.scale.transpose(1, 2)  # fp32, so that rounding happens once
        if operand.low is not None:
            wide += operand.low.transpose(1, 2)
        parts = wide.to(dtype)
    whole = parts[0] if parts.shape[0] == 1 else torch.cat([parts[0], parts[1]], -1)
    return whole.unflatten(0, (batch.num_rows, -1))


def _dense(query: Tensor, reader: Reader, call: Call, batch: Batch) -> tuple[Tensor, Tensor]:
    """Fused attention over dequantised K and V; out [B, h, G, Q, D] and lse [B, h, G, Q]."""
    k, v = _values(reader.key, batch), _values(reader.value, batch)
    table = call.plan.rope_table
    if batch.pos is not None and table is not None:
        cos, sin = (angles[batch.pos][:, None] for angles in table)  # [B, 1, T, D / 2]
        k = rotate(k.to(torch.float32), cos, sin).to(k.dtype)
    query = query if query.dtype == k.dtype else query.to(k.dtype)
    if call.k_scale != 1.0:
        query = query * call.k_scale
    out, lse = _fused(query, k, v, batch, call.score_scale)
    if call.mass is not None:
        _dense_mass(query, k, batch, call.score_scale, call.mass)
    return out, lse


def _fused(
    query: Tensor, k: Tensor, v: Tensor, batch: Batch, scale: float
) -> tuple[Tensor, Tensor]:
    rows, heads, share, queries, dim = query.shape
    slots = batch.num_slots
    if queries == 1:  # the query heads of a KV head take the place of query positions
        bias = None if batch.bias is None else batch.bias.expand(rows, heads, share, slots)
        out, lse = FUSED(query.squeeze(3), k, v, 0.0, False, attn_mask=bias, scale=scale)
        return out[..., None, :], lse[..., None]
    merged = rows * heads
    flat = query.reshape(merged, share, queries, dim)
    k = k.flatten(0, 1)[:, None].expand(merged, share, slots, dim)
    v = v.flatten(0, 1)[:, None].expand(merged, share, slots, dim)
    if batch.fresh:  # the fused kernel then skips what lies above the diagonal
        out, lse = FUSED(flat, k, v, 0.0, True, scale=scale)
    else:
        bias = None if batch.bias is None else batch.bias.expand(merged, share, queries, slots)
        out, lse = FUSED(flat, k, v, 0.0, False, attn_mask=bias, scale=scale)
    shape = (rows, heads, share, queries)
    return out.unflatten(0, (rows, heads)), lse.reshape(shape)


def _dense_mass(query: Tensor, k: Tensor, batch: Batch, scale: float, total: Tensor) -> None:
    """Add each slot's attention, in tiles of query positions so that scores stay bounded."""
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
        _add_mass(torch.softmax(scores, -1), batch, part, total)


def _folded(query: Tensor, reader: Reader, call: Call, batch: Batch) -> tuple[Tensor, Tensor]:
    """Decode attention on codes; same shapes as `_dense` with Q = 1."""
    rows, heads, share, _, dim = query.shape
    flat = query.reshape(rows * heads, share, dim).to(torch.float32)
    scores = _scores(flat * (call.score_scale * call.k_scale), reader.key)  # [B * h, G, T]
    if batch.tail_bias is not None:
        scores.view(rows, heads * share, -1).add_(batch.tail_bias)
    lse = torch.logsumexp(scores, -1) if call.partial else scores[..., 0]
    probs = torch.softmax(scores, -1)
    if call.mass is not None:
        _add_mass(probs.view(rows, heads, share, 1, -1), batch, slice(0, 1), call.mass)
    out = _weighted(probs, reader.value)
    shape = (rows, heads, share, 1)
    return out.view(*shape, dim), lse.reshape(shape)


def _scores(query: Tensor, key: Operand) -> Tensor:
    """q [B * h, G, D] times K, fp32 [B * h, G, T]; scale and minimum after the product."""
    parts = key.parts.shape[0]
    if parts == 1:
        scores = torch.bmm(query, key.parts[0].transpose(1, 2))
    else:
        half = query.shape[-1] // 2
        scores = torch.bmm(query[..., :half], key.parts[0].transpose(1, 2))
        scores.baddbmm_(query[..., half:], key.parts[1].transpose(1, 2))
    if key.scale is not None:
        scores.mul_(key.scale)
    if key.low is not None:
        scores.addcmul_(query.sum(-1, keepdim=True), key.low)
    return scores


def _weighted(probs: Tensor, value: Operand) -> Tensor:
    """Probabilities fp32 [B * h, G, T] times V: [B * h, G, D]."""
    weights = probs if value.scale is None else probs * value.scale
    outs = [torch.bmm(weights, part) for part in value.parts]
    out = outs[0] if len(outs) == 1 else torch.cat(outs, -1)
    if value.low is not None:
        out = out + torch.bmm(probs, value.low.transpose(1, 2))
    return out


def _add_mass(probs: Tensor, batch: Batch, queries: slice, total: Tensor) -> None:
    """Add probabilities [B, h, G, Q, T] to total [rows, h, P * S], padding queries left out."""
    if batch.blind is not None:
        probs = probs.masked_fill(batch.blind[:, None, None, queries, None], 0.0)
    if batch.real is not None:
        probs = probs * batch.real[:, None, None, queries, None]
    slots = probs.shape[-1]
    total[..., :slots].index_add_(0, batch.rows, probs.sum((2, 3)))


def _finish_mass(plan: Plan, total: Tensor | None, mass: Mass) -> Tensor | None:
    if total is None:
        return None
    slots = total.view(plan.num_requests, -1, total.shape[-1])  # [R, Hkv, P * S]
    if mass == "token":
        return slots
    return slots.unflatten(-1, (plan.num_pages, plan.spec.block_size)).sum(-1)
