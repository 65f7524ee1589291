"""Paged attention in torch: a few products a batch of rows, no loop over requests.

Decode rows go to `kvkernels.decode`. Here K and V become one dtype and torch's fused CPU kernel
runs. Shapes: B rows (request x head group), h KV heads, G query heads each, Q queries, T slots.
"""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from kvkernels import few, prefill
from kvkernels.api import AttentionResult, FormatState, Mass
from kvkernels.common import rotate
from kvkernels.decode import FUSED, Factors, FoldedDecode, FusedDecode
from kvkernels.formats.fp8 import Fp8
from kvkernels.layout import PageSpec
from kvkernels.mass import MassSum
from kvkernels.plan import Batch, Plan
from kvkernels.readers import Operand, Reader
from kvkernels.tile_reader import TileReader
from kvkernels.turn import turn_output, turn_query


class Call:
    """Arguments of one `attend` that every batch needs."""

    def __init__(
        self, plan: Plan, layer: int, scale: float, state: FormatState, partial: bool
    ) -> None:
        """Join the scales of the layer."""
        self.plan, self.layer, self.partial = plan, layer, partial
        self.factors = Factors.of(plan, layer, scale, state)
        self.mass: MassSum | None = None
        self.state = state


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
    each_head: bool = False,
) -> AttentionResult:
    """Attend q [N, Hq, D] (bf16 or fp32) to the pages of `plan`; see `AttentionResult`.

    Query head i uses KV head i // (Hq / Hkv). Arithmetic follows the dtype of q; softmax is fp32.
    Padding and unwritten slots are never read into a result, whatever bytes they hold.
    """
    tokens, num_heads, dim = q.shape
    dtype = q.dtype
    if plan.turned[0]:
        q = turn_query(q, plan.spec, layer, state, plan.rope)
    call = Call(plan, layer, softmax_scale, state, partial)
    if mass is not None:
        call.mass = MassSum(plan, num_heads, each_head)
    if plan.covers_all:
        out, lse = _attend_batch(q, arena, call, plan.batches[0])
    else:
        rows = q.reshape(tokens * plan.num_head_groups, -1, dim)  # [N * groups, h * G, D]
        out = q.new_zeros(rows.shape)
        lse = torch.full(rows.shape[:2], float("-inf"))
        for batch in plan.batches:
            part_out, part_lse = _attend_batch(rows, arena, call, batch)
            _place(out, part_out, batch)
            if partial:
                _place(lse, part_lse, batch)
    if plan.turned[1]:
        out = turn_output(out.reshape(q.shape), plan.spec, layer, state)
    return AttentionResult(
        out.reshape(tokens, num_heads * dim).to(dtype),
        lse.reshape(tokens, num_heads) if partial else None,
        None if call.mass is None else call.mass.result(mass),
    )


def _place(target: Tensor, values: Tensor, batch: Batch) -> None:
    values = values.reshape(-1, *target.shape[1:])
    if batch.out_picks is not None:
        values = values.index_select(0, batch.out_picks)
    if batch.out_rows is None:
        target.copy_(values)
    else:
        target.index_copy_(0, batch.out_rows, values)


def _attend_batch(q: Tensor, arena: Tensor, call: Call, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return out and lse of B * Q rows, h * G heads, in that order (lse only if `partial`).

    q holds the batch's rows alone where the plan has one batch, else all rows.
    """
    plan = call.plan
    if batch.num_queries == 1 and plan.rope == "stored" and not plan.tiled:
        out, lse = _decode(q if plan.covers_all else _pick(q, batch), arena, call, batch)
        if batch.blind is None:
            return out, lse
        out = out.view(batch.num_rows, -1).masked_fill(batch.blind, 0.0)
        lse = lse.reshape(batch.num_rows, -1)
        return out, lse.masked_fill(batch.blind, float("-inf")) if call.partial else lse
    if not prefill.BF16_TILES and not call.partial and call.mass is None:
        if few.takes(plan, batch, q.dtype):
            return _few(q if plan.covers_all else _pick(q, batch), arena, call, batch)
    reader = _reader(plan, batch, q.dtype)
    if isinstance(reader, TileReader):
        reader.read(arena, call.layer, call.state)
    else:
        reader.read(arena, call.layer)
    begun = perf_counter()
    out, lse = _dense(_queries(q, batch, plan), reader, call, batch)
    if batch.blind is not None:
        blind = batch.blind[:, None, None, :]
        out = out.masked_fill(blind[..., None], 0.0)
        lse = lse.masked_fill(blind, float("-inf"))
    out, lse = out.permute(0, 3, 1, 2, 4), lse.permute(0, 3, 1, 2)
    out = out.reshape(batch.num_rows * batch.num_queries, -1, plan.spec.head_dim).to(q.dtype)
    plan.timers.attention_s += perf_counter() - begun
    return out, lse


def _decode(q: Tensor, arena: Tensor, call: Call, batch: Batch) -> tuple[Tensor, Tensor]:
    """One query a row, on operands that the layers of the step share."""
    plan, wants_mass = call.plan, call.mass is not None
    key = (id(batch), q.dtype, wants_mass)
    bound = plan.readers.get(key)
    if bound is None:
        dtype = _dense_dtype(q.dtype, plan.spec, 1)
        if batch.meta is None and dtype == torch.bfloat16 and _fuses(batch):
            bound = FusedDecode(plan, batch, dtype, whole=wants_mass)
        else:
            heads = batch.num_rows * plan.spec.num_kv_heads * plan.spec.head_dim
            bound = FoldedDecode(plan, batch, q.numel() // heads, q.dtype)
        plan.readers[key] = bound
    if isinstance(bound, FusedDecode):
        out, lse = bound.run(q, arena, call.layer, call.factors)
        if call.mass is not None:
            k = bound.key.view(batch.num_rows, -1, *bound.key.shape[2:])
            query = q.reshape(*k.shape[:2], -1, 1, k.shape[-1]).to(k.dtype)
            call.mass.add_products(query, k, batch, call.factors.score)
        return out, lse
    return bound.run(q, arena, call.layer, call.factors, call.partial, _mass_adder(call, batch))


def _few(q: Tensor, arena: Tensor, call: Call, batch: Batch) -> tuple[Tensor, Tensor]:
    """Some queries of one request, on buffers that the layers of the step share; no lse."""
    plan, key = call.plan, (id(batch), "few")
    bound = plan.readers.get(key)
    if bound is None:
        spec = plan.spec
        share = q.numel() // (batch.num_queries * spec.num_kv_heads * spec.head_dim)
        bound = plan.readers[key] = few.FewQueries(plan, batch, share)
    out = bound.run(q, arena, call.layer, call.factors)
    return out, out


def _fuses(batch: Batch) -> bool:
    """Whether torch's fused kernel decodes bf16 faster than fp32 products."""
    return prefill.BF16_TILES or batch.num_rows == 1


def _mass_adder(call: Call, batch: Batch) -> Callable[[Tensor], None] | None:
    mass = call.mass
    if mass is None:
        return None

    def add(probs: Tensor) -> None:
        shape = (batch.num_rows, call.plan.spec.num_kv_heads, -1, 1, probs.shape[-1])
        mass.add(probs.view(shape), batch, slice(0, 1))

    return add


def _reader(plan: Plan, batch: Batch, query: torch.dtype) -> Reader | TileReader:
    """Bind a reader to the batch on first use; the layers of the step share it."""
    key = (id(batch), query)
    reader: Reader | TileReader | None = plan.readers.get(key)
    if reader is None:
        dtype = _dense_dtype(query, plan.spec, batch.num_queries)
        if plan.tiled:
            if batch.num_queries == 1:
                dtype = torch.float32  # bf16 would round each number once more, for no gain
            reader = TileReader(plan, batch, dtype)
        else:
            reader = Reader(plan.spec, batch, dtype, plan.scratch, plan.timers)
        plan.readers[key] = reader
    return reader


def _dense_dtype(query: torch.dtype, spec: PageSpec, num_queries: int) -> torch.dtype:
    """fp32 where q or a page is fp32; fp16 for fp8 decode (no cast is needed); else bf16.

    Both hold fp8 exactly; large bf16 products are faster where the CPU has tiles for them.
    """
    if query == torch.float32 or torch.float32 in (spec.k.dtype, spec.v.dtype):
        return torch.float32
    decodes_fp8 = isinstance(spec.k, Fp8) and isinstance(spec.v, Fp8) and num_queries == 1
    return torch.float16 if decodes_fp8 else torch.bfloat16


def _pick(rows: Tensor, batch: Batch) -> Tensor:
    """A batch's rows of q."""
    if isinstance(batch.queries, slice):
        return rows[batch.queries]
    return rows.index_select(0, batch.queries)


def _queries(q: Tensor, batch: Batch, plan: Plan) -> Tensor:
    """Pick a batch's queries: [B, h, G, Q, D]."""
    spec = plan.spec
    rows = q.reshape(plan.num_query_rows * plan.num_head_groups, -1, spec.head_dim)
    picked = _pick(rows, batch)
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


def _dense(
    query: Tensor, reader: Reader | TileReader, call: Call, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Fused attention over dequantised K and V; out [B, h, G, Q, D] and lse [B, h, G, Q]."""
    k, v = _values(reader.key, batch), _values(reader.value, batch)
    table = call.plan.rope_table
    if batch.pos is not None and table is not None:
        cos, sin = (angles[batch.pos][:, None] for angles in table)  # [B, 1, T, D / 2]
        k = rotate(k.to(torch.float32), cos, sin).to(k.dtype)
    query = query.to(k.dtype)
    out, lse = _fused(query, k, v, batch, call)
    if call.mass is not None:
        call.mass.add_products(query, k, batch, call.factors.score)
    if call.factors.out != 1.0:  # bf16 would round twice
        out = out.to(torch.float32).mul_(call.factors.out)
    return out, lse


def _fused(query: Tensor, k: Tensor, v: Tensor, batch: Batch, call: Call) -> tuple[Tensor, Tensor]:
    rows, heads, share, queries, dim = query.shape
    slots, scale = batch.num_slots, call.factors.score
    if queries == 1:  # the query heads of a KV head take the place of query positions
        bias = None if batch.bias is None else batch.bias.expand(rows, heads, share, slots)
        out, lse = FUSED(query.squeeze(3), k, v, 0.0, False, attn_mask=bias, scale=scale)
        return out[..., None, :], lse[..., None]
    merged = rows * heads
    flat = query.reshape(merged, share, queries, dim)
    if k.dtype == torch.bfloat16 and not prefill.BF16_TILES:
        out, lse = prefill.attend_products(
            flat, k.flatten(0, 1), v.flatten(0, 1), batch.bias, scale=scale, causal=batch.fresh,
            partial=call.partial, scratch=call.plan.scratch,
        )  # fmt: skip
        return out.unflatten(0, (rows, heads)), lse.unflatten(0, (rows, heads))
    k = k.flatten(0, 1)[:, None].expand(merged, share, slots, dim)
    v = v.flatten(0, 1)[:, None].expand(merged, share, slots, dim)
    if batch.fresh:  # the fused kernel then skips what lies above the diagonal
        out, lse = FUSED(flat, k, v, 0.0, True, scale=scale)
    else:
        bias = None if batch.bias is None else batch.bias.expand(merged, share, queries, slots)
        out, lse = FUSED(flat, k, v, 0.0, False, attn_mask=bias, scale=scale)
    shape = (rows, heads, share, queries)
    return out.unflatten(0, (rows, heads)), lse.reshape(shape)
