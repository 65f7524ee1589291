"""Triton kernels that write new vectors, move whole pages and re-encode them."""

import triton
import triton.language as tl

from kvkernels.triton_ops import load_values, store_pair


@triton.jit(do_not_specialize=["layer"])
def write_kernel(
    k,
    v,
    k_arena,
    v_arena,
    meta,
    pages,
    slots,
    picks,
    k_scale,
    v_scale,
    saturated,
    layer,
    num_groups,
    S: tl.constexpr,
    H: tl.constexpr,
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
    BLOCK_H: tl.constexpr,
):
    """Encode the heads of one (token, head group) into its page.

    pages int64 [n, groups] byte offsets, slots int32 [n, groups] inside the page, picks int32 [n].
    """
    item = tl.program_id(0)
    group = item % num_groups
    token = tl.load(picks + item // num_groups)
    page = tl.load(pages + item) + layer.to(tl.int64) * LAYER_BYTES
    inner = tl.load(slots + item)
    head = tl.arange(0, BLOCK_H)
    live = head < H
    source = ((token * num_groups + group) * H + head).to(tl.int64) * (2 * HALF)
    dims = tl.arange(0, HALF)
    where = source[:, None] + dims[None, :]
    k0 = tl.load(k + where, mask=live[:, None], other=0).to(tl.float32)
    k1 = tl.load(k + where + HALF, mask=live[:, None], other=0).to(tl.float32)
    at = page // K_ITEM + (head * S + inner) * (K_ROW // K_ITEM)
    meta_at = (page + K_META) // 2 + head * (K_KINDS * S) + inner
    store_pair(
        k_arena,
        meta,
        at,
        meta_at,
        live,
        k0,
        k1,
        tl.load(k_scale + layer),
        saturated,
        S,
        HALF,
        K_FMT,
    )
    v0 = tl.load(v + where, mask=live[:, None], other=0).to(tl.float32)
    v1 = tl.load(v + where + HALF, mask=live[:, None], other=0).to(tl.float32)
    at = (page + V_OFFSET) // V_ITEM + (head * S + inner) * (V_ROW // V_ITEM)
    meta_at = (page + V_META) // 2 + head * (V_KINDS * S) + inner
    store_pair(
        v_arena,
        meta,
        at,
        meta_at,
        live,
        v0,
        v1,
        tl.load(v_scale + layer),
        saturated,
        S,
        HALF,
        V_FMT,
    )


@triton.jit
def move_kernel(src, dst, src_at, dst_at, words, BLOCK: tl.constexpr):
    """Copy `words` int64 words from src[src_at[i]] to dst[dst_at[i]] (word indices)."""
    start = tl.load(src_at + tl.program_id(0))
    target = tl.load(dst_at + tl.program_id(0))
    start = tl.multiple_of(start, 8)
    target = tl.multiple_of(target, 8)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(src + start + at, mask=at < words)
    tl.store(dst + target + at, value, mask=at < words)


@triton.jit
def recode_kernel(
    src,
    src_meta,
    dst,
    dst_meta,
    src_pages,
    dst_pages,
    num_slots,
    src_scale,
    dst_scale,
    saturated,
    L: tl.constexpr,
    H: tl.constexpr,
    S: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SRC_FMT: tl.constexpr,
    SRC_ITEM: tl.constexpr,
    SRC_ROW: tl.constexpr,
    SRC_LAYER: tl.constexpr,
    SRC_START: tl.constexpr,
    SRC_META: tl.constexpr,
    SRC_KINDS: tl.constexpr,
    DST_FMT: tl.constexpr,
    DST_ITEM: tl.constexpr,
    DST_ROW: tl.constexpr,
    DST_LAYER: tl.constexpr,
    DST_START: tl.constexpr,
    DST_META: tl.constexpr,
    DST_KINDS: tl.constexpr,
):
    """Re-encode one plane of one (page, layer, head); unwritten slots become encoded zeros."""
    item = tl.program_id(0)
    layer = (tl.program_id(1) // H).to(tl.int64)
    head = tl.program_id(1) % H
    inner = tl.arange(0, BLOCK_S)
    inside = inner < S
    live = inner < tl.minimum(tl.load(num_slots + item), S)
    page = tl.load(src_pages + item) + layer * SRC_LAYER
    at = (page + SRC_START) // SRC_ITEM + (head * S + inner) * (SRC_ROW // SRC_ITEM)
    meta_at = (page + SRC_META) // 2 + head * (SRC_KINDS * S) + inner
    shared = tl.load(src_scale + layer)
    x0, x1 = load_values(src, src_meta, at, meta_at, live, shared, S, HALF, SRC_FMT)
    page = tl.load(dst_pages + item) + layer * DST_LAYER
    at = (page + DST_START) // DST_ITEM + (head * S + inner) * (DST_ROW // DST_ITEM)
    meta_at = (page + DST_META) // 2 + head * (DST_KINDS * S) + inner
    store_pair(
        dst,
        dst_meta,
        at,
        meta_at,
        inside,
        x0,
        x1,
        tl.load(dst_scale + layer),
        saturated,
        S,
        HALF,
        DST_FMT,
    )
