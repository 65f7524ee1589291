"""Triton kernels of attention over page tables: one body for split-KV decode and chunked prefill.

A program takes one tile of query rows (a request's queries x the G query heads of a KV head) and
one split of its slots. Decode runs many splits of one small tile and merges them; prefill runs
many tiles of one split. Online softmax as in FlashAttention (Dao 2022), splits as Flash-Decoding.

The row table holds six int32 a row: first token, queries, slots, new slots, first new token, head
group. K and V are a `Plane` each, PAGE a `Page`.
"""

import triton
import triton.language as tl

from kvkernels.triton_ops import add_values, load_queries, mean_values, score_tile


@triton.jit(do_not_specialize=["layer"])
def attention_kernel(
    q, out, lse, k_arena, v_arena, meta, k_table, v_table, pages, rows, tiles, log_count, pos, cos,
    sin, k_scale, v_scale, layer, scale, width, num_groups, split_slots, split_stride,
    K: tl.constexpr, V: tl.constexpr, PAGE: tl.constexpr, G: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DOT: tl.constexpr, HAS_LOG: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Attend a tile to one split; writes out [split, N, Hq, D] and natural lse [split, N, Hq]."""
    row = tl.load(tiles + tl.program_id(0) * 2)
    start = tl.load(tiles + tl.program_id(0) * 2 + 1)
    head = tl.program_id(1)
    split = tl.program_id(2)
    q0, q1, at, real, visible = load_queries(
        q, rows, row, start, head, num_groups, G, PAGE, BLOCK_M, DOT
    )
    layer_start = layer.to(tl.int64) * PAGE.layer_bytes
    k_shared = tl.load(k_scale + layer)
    index = (layer * num_groups + tl.load(rows + row * 6 + 5)) * PAGE.heads + head  # of all heads
    key = (k_arena, meta, k_table + index * K.table)
    value = (v_arena, meta, v_table + index * V.table)
    rope = (pos, cos, sin)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    low0, low1 = total, total
    acc0 = tl.zeros([BLOCK_M, PAGE.half], tl.float32)
    acc1 = tl.zeros([BLOCK_M, PAGE.half], tl.float32)
    begin = split * split_slots
    end = tl.minimum(begin + split_slots, tl.max(visible, 0))
    for block in range(begin, end, BLOCK_N):
        t = block + tl.arange(0, BLOCK_N)
        live = t < end
        scores, base, inner = score_tile(
            q0, q1, key, rope, log_count, pages, row, t, head, live, layer_start, k_shared, scale,
            width, K, PAGE, DOT, HAS_LOG, ROPE,
        )  # fmt: skip
        scores = tl.where(t[None, :] < visible[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(scores - safe_top[:, None])
        decay = tl.exp2(top - safe_top)
        total = total * decay + tl.sum(p, 1)
        top = new_top
        acc0, acc1, low0, low1 = add_values(
            (acc0, acc1, low0, low1), p, decay, value, base, head, inner, live, V, PAGE, DOT
        )
    v_shared = tl.load(v_scale + layer)
    safe = tl.where(total > 0, total, 1.0)
    first, second = mean_values((acc0, acc1, low0, low1), safe, v_shared, V)
    place = split * split_stride + at
    where = place[:, None].to(tl.int64) * (2 * PAGE.half) + tl.arange(0, PAGE.half)[None, :]
    tl.store(out + where, first.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(out + where + PAGE.half, second.to(out.dtype.element_ty), mask=real[:, None])
    seen = tl.where(total > 0, (top + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
    tl.store(lse + place, seen, mask=real)


@triton.jit
def combine_kernel(
    parts, lses, out, lse, picks, num_splits, stride, per_row,
    D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Merge splits of one (query row, head): parts fp32 [splits, N * Hq, D] to out [N * Hq, D]."""
    index = tl.load(picks + tl.program_id(0)) * per_row + tl.program_id(1)
    s = tl.arange(0, BLOCK_S)
    values = tl.load(lses + s * stride + index, mask=s < num_splits, other=float("-inf"))
    top = tl.max(values, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp(values - base)
    total = tl.sum(weight, 0)
    safe = tl.where(total > 0, total, 1.0)
    dims = tl.arange(0, D)
    where = (s * stride + index)[:, None].to(tl.int64) * D + dims[None, :]
    part = tl.load(parts + where, mask=(s < num_splits)[:, None], other=0)
    merged = tl.sum(part * weight[:, None], 0) / safe
    tl.store(out + index.to(tl.int64) * D + dims, merged.to(out.dtype.element_ty))
    tl.store(lse + index, tl.where(total > 0, base + tl.log(safe), float("-inf")))


@triton.jit(do_not_specialize=["layer"])
def mass_kernel(
    q, lse, mass, k_arena, meta, k_table, pages, rows, log_count, pos, cos, sin, k_scale, layer,
    scale, width, num_groups,
    K: tl.constexpr, PAGE: tl.constexpr, G: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DOT: tl.constexpr, HAS_LOG: tl.constexpr, ROPE: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Sum exp(score - lse) over a row's queries and query heads: fp32 mass [rows, H, width * S].

    With PARTS = G, else 1, query heads stay apart: [rows, H * G, width * S].
    """
    row = tl.program_id(0)
    head = tl.program_id(1) // PARTS
    t = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = t < tl.load(rows + row * 6 + 2)
    layer_start = layer.to(tl.int64) * PAGE.layer_bytes
    k_shared = tl.load(k_scale + layer)
    index = (layer * num_groups + tl.load(rows + row * 6 + 5)) * PAGE.heads + head
    key, rope = (k_arena, meta, k_table + index * K.table), (pos, cos, sin)
    sums = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, tl.load(rows + row * 6 + 1) * G, BLOCK_M):
        q0, q1, at, real, visible = load_queries(
            q, rows, row, start, head, num_groups, G, PAGE, BLOCK_M, DOT
        )
        scores, base, inner = score_tile(
            q0, q1, key, rope, log_count, pages, row, t, head, live, layer_start, k_shared, scale,
            width, K, PAGE, DOT, HAS_LOG, ROPE,
        )  # fmt: skip
        norm = tl.load(lse + at, mask=real, other=0.0) * 1.4426950408889634
        seen = t[None, :] < visible[:, None]
        if PARTS > 1:
            seen = seen & (at % PARTS == tl.program_id(1) % PARTS)[:, None]
        sums += tl.sum(tl.where(seen, tl.exp2(scores - norm[:, None]), 0.0), 0)
    slots = width * PAGE.slots
    place = row * PAGE.heads * PARTS + tl.program_id(1)
    tl.store(mass + place * slots + t, sums, mask=t < slots)
