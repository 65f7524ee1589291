"""Triton kernels of attention over page tables: one body for split-KV decode and chunked prefill.

A program takes one tile of query rows (a request's queries x the G query heads of a KV head) and
one split of its slots. Decode runs many splits of one small tile and merges them; prefill runs
many tiles of one split. Online softmax as in FlashAttention (Dao 2022), splits as Flash-Decoding.

The row table holds six int32 a row: first token, queries, slots, new slots, first new token, head
group.
"""

import triton
import triton.language as tl

from kvkernels.triton_ops import load_pair, load_scale, load_tile, score_tile


@triton.jit(do_not_specialize=["layer"])
def attention_kernel(
    q,
    out,
    lse,
    k_arena,
    v_arena,
    meta,
    pages,
    rows,
    tiles,
    log_count,
    pos,
    cos,
    sin,
    k_scale,
    v_scale,
    layer,
    scale,
    width,
    num_groups,
    split_slots,
    split_stride,
    S: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    HALF: tl.constexpr,
    LAYER_BYTES: tl.constexpr,
    V_OFFSET: tl.constexpr,
    K_META: tl.constexpr,
    V_META: tl.constexpr,
    K_FMT: tl.constexpr,
    V_FMT: tl.constexpr,
    K_ITEM: tl.constexpr,
    V_ITEM: tl.constexpr,
    K_ROW: tl.constexpr,
    V_ROW: tl.constexpr,
    K_KINDS: tl.constexpr,
    V_KINDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DOT: tl.constexpr,
    HAS_LOG: tl.constexpr,
    ROPE: tl.constexpr,
):
    """Attend a tile to one split; writes out [split, N, Hq, D] and natural lse [split, N, Hq]."""
    row = tl.load(tiles + tl.program_id(0) * 2)
    start = tl.load(tiles + tl.program_id(0) * 2 + 1)
    head = tl.program_id(1)
    split = tl.program_id(2)
    q0, q1, at, real, visible = load_tile(
        q, rows, row, start, head, G, H, num_groups, HALF, BLOCK_M, DOT
    )
    layer_start = layer.to(tl.int64) * LAYER_BYTES
    k_shared = tl.load(k_scale + layer)
    v_shared = tl.load(v_scale + layer)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    low_sum = tl.zeros([BLOCK_M], tl.float32)
    acc0 = tl.zeros([BLOCK_M, HALF], tl.float32)
    acc1 = tl.zeros([BLOCK_M, HALF], tl.float32)
    begin = split * split_slots
    end = tl.minimum(begin + split_slots, tl.max(visible, 0))
    for block in range(begin, end, BLOCK_N):
        t = block + tl.arange(0, BLOCK_N)
        live = t < end
        page = tl.load(pages + row * width + t // S, mask=live, other=0)
        slot_at = row * (width * S) + t
        scores = score_tile(
            q0,
            q1,
            k_arena,
            meta,
            log_count,
            pos,
            cos,
            sin,
            page,
            slot_at,
            t,
            head,
            live,
            layer_start,
            k_shared,
            scale,
            S,
            HALF,
            K_FMT,
            K_ITEM,
            K_ROW,
            K_META,
            K_KINDS,
            DOT,
            HAS_LOG,
            ROPE,
        )
        scores = tl.where(t[None, :] < visible[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(scores - base[:, None])
        decay = tl.exp2(top - base)
        total = total * decay + tl.sum(p, 1)
        top = new_top
        inner = t % S
        v_at = (page + layer_start + V_OFFSET) // V_ITEM + (head * S + inner) * (V_ROW // V_ITEM)
        v_at = tl.multiple_of(v_at, 16 // V_ITEM)
        v0, v1 = load_pair(v_arena, v_at, live, HALF, V_FMT, DOT)
        if V_FMT == "int8" or V_FMT == "int4":
            meta_at = (page + layer_start + V_META) // 2 + head * (V_KINDS * S) + inner
            if V_FMT == "int4":
                v_low = load_scale(meta, meta_at + S, live)
                low_sum = low_sum * decay + tl.sum(p * v_low[None, :], 1)
            p = p * load_scale(meta, meta_at, live)[None, :]
        weights = p.to(DOT)
        acc0 = tl.dot(weights, v0, acc0 * decay[:, None], input_precision="ieee")
        acc1 = tl.dot(weights, v1, acc1 * decay[:, None], input_precision="ieee")
    safe = tl.where(total > 0, total, 1.0)
    factor = 1.0 / safe
    if V_FMT == "fp8_e4m3":
        factor = factor * v_shared * 256.0
    first = acc0 * factor[:, None]
    second = acc1 * factor[:, None]
    if V_FMT == "int4":
        first += (low_sum / safe)[:, None]
        second += (low_sum / safe)[:, None]
    place = split * split_stride + at
    where = place[:, None].to(tl.int64) * (2 * HALF) + tl.arange(0, HALF)[None, :]
    tl.store(out + where, first.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(out + where + HALF, second.to(out.dtype.element_ty), mask=real[:, None])
    value = tl.where(total > 0, (top + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
    tl.store(lse + place, value, mask=real)


@triton.jit
def combine_kernel(
    parts,
    lses,
    out,
    lse,
    picks,
    num_splits,
    stride,
    per_row,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
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
    q,
    lse,
    mass,
    k_arena,
    meta,
    pages,
    rows,
    log_count,
    pos,
    cos,
    sin,
    k_scale,
    layer,
    scale,
    width,
    num_groups,
    S: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    HALF: tl.constexpr,
    LAYER_BYTES: tl.constexpr,
    K_META: tl.constexpr,
    K_FMT: tl.constexpr,
    K_ITEM: tl.constexpr,
    K_ROW: tl.constexpr,
    K_KINDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DOT: tl.constexpr,
    HAS_LOG: tl.constexpr,
    ROPE: tl.constexpr,
):
    """Sum exp(score - lse) over a row's queries and query heads: fp32 mass [rows, H, width * S]."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    t = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    slots = tl.load(rows + row * 6 + 2)
    live = t < slots
    page = tl.load(pages + row * width + t // S, mask=live, other=0)
    slot_at = row * (width * S) + t
    layer_start = layer.to(tl.int64) * LAYER_BYTES
    k_shared = tl.load(k_scale + layer)
    sums = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, tl.load(rows + row * 6 + 1) * G, BLOCK_M):
        q0, q1, at, real, visible = load_tile(
            q, rows, row, start, head, G, H, num_groups, HALF, BLOCK_M, DOT
        )
        scores = score_tile(
            q0,
            q1,
            k_arena,
            meta,
            log_count,
            pos,
            cos,
            sin,
            page,
            slot_at,
            t,
            head,
            live,
            layer_start,
            k_shared,
            scale,
            S,
            HALF,
            K_FMT,
            K_ITEM,
            K_ROW,
            K_META,
            K_KINDS,
            DOT,
            HAS_LOG,
            ROPE,
        )
        norm = tl.load(lse + at, mask=real, other=0.0) * 1.4426950408889634
        seen = t[None, :] < visible[:, None]
        sums += tl.sum(tl.where(seen, tl.exp2(scores - norm[:, None]), 0.0), 0)
    tl.store(mass + (row * H + head) * (width * S) + t, sums, mask=t < width * S)
