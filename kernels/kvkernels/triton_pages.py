"""Triton kernels that write new vectors, move whole pages and re-encode them."""

import triton
import triton.language as tl

from kvkernels.triton_calibrated import coordinates, store_coordinates
from kvkernels.triton_rotation import rotate_pair
from kvkernels.triton_store import store_tile
from kvkernels.triton_tiles import data_at, decode_tile, meta_at


@triton.jit(do_not_specialize=["layer"])
def write_kernel(
    k, v, k_arena, v_arena, meta, k_table, v_table, pages, slots, picks, k_scale, v_scale,
    saturated, layer, num_groups, k_width, v_width,
    K: tl.constexpr, V: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Encode the heads of one (token, head group) into its page.

    pages int64 [n, groups] byte offsets, slots int32 [n, groups] inside the page, picks int32 [n].
    """
    item = tl.program_id(0)
    group = item % num_groups
    token = tl.load(picks + item // num_groups)
    head = tl.arange(0, BLOCK_H)
    live = head < PAGE.heads
    base = tl.load(pages + item) + layer.to(tl.int64) * PAGE.layer_bytes + head * 0
    inner = tl.load(slots + item)
    index = group * PAGE.heads + head  # of all KV heads
    source = (token * num_groups * PAGE.heads + index).to(tl.int64) * (2 * PAGE.half)
    where = source[:, None] + tl.arange(0, PAGE.half)[None, :]
    first = tl.load(k + where, mask=live[:, None], other=0).to(tl.float32)
    second = tl.load(k + where + PAGE.half, mask=live[:, None], other=0).to(tl.float32)
    shared = tl.load(k_scale + layer * k_width + index % k_width)[:, None]
    own = tl.where(live, (layer * num_groups * PAGE.heads + index) * K.table, 0)
    target = (k_arena, meta, k_table, own)
    store_tile(target, base, head, inner, live, first, second, shared, saturated, K, PAGE)
    first = tl.load(v + where, mask=live[:, None], other=0).to(tl.float32)
    second = tl.load(v + where + PAGE.half, mask=live[:, None], other=0).to(tl.float32)
    shared = tl.load(v_scale + layer * v_width + index % v_width)[:, None]
    own = tl.where(live, (layer * num_groups * PAGE.heads + index) * V.table, 0)
    target = (v_arena, meta, v_table, own)
    store_tile(target, base, head, inner, live, first, second, shared, saturated, V, PAGE)


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
def source_rows(
    source, layer, base, head, inner, live, shared, P: tl.constexpr, PAGE: tl.constexpr
):  # fmt: skip
    """Vectors of a head of a page, unwritten ones zero: two fp32 [n, HALF]."""
    ptr, meta, table = source
    own = (ptr, meta, table + (layer * PAGE.heads + head) * P.table)
    first, second = decode_tile(own, base, head, inner, live, shared, P, PAGE)
    # a masked row decodes to its codebook's first level, or to a minimum of zero codes
    first = tl.where(live[:, None], first, 0.0)
    second = tl.where(live[:, None], second, 0.0)
    if P.rotated:
        first, second = rotate_pair(first, second, PAGE)
    return first, second


@triton.jit
def recode_kernel(
    src, src_meta, src_table, dst, dst_meta, dst_table, src_pages, dst_pages, num_slots,
    src_scale, dst_scale, saturated, src_width, dst_width,
    SRC: tl.constexpr, SRC_PAGE: tl.constexpr, DST: tl.constexpr, DST_PAGE: tl.constexpr,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Re-encode one plane of one (page, layer, head); unwritten slots become encoded zeros.

    A head of joined ones holds a part of their coordinates, to which the numbers of all add.
    """
    item = tl.program_id(0)
    layer = (tl.program_id(1) // SRC_PAGE.heads).to(tl.int64)
    head = tl.program_id(1) % SRC_PAGE.heads
    inner = tl.arange(0, BLOCK_S)
    live = inner < tl.minimum(tl.load(num_slots + item), SRC_PAGE.slots)
    base = tl.load(src_pages + item) + layer * SRC_PAGE.layer_bytes
    shared = tl.load(src_scale + layer * src_width + head % src_width)
    source = (src, src_meta, src_table)
    inside = inner < DST_PAGE.slots
    target_base = tl.load(dst_pages + item) + layer * DST_PAGE.layer_bytes
    if DST.joined > 1:
        low = tl.zeros([BLOCK_S, DST.columns], tl.float32)
        high = low
        for number in range(DST.joined):
            other = head // DST.joined * DST.joined + number
            shared = tl.load(src_scale + layer * src_width + other % src_width)
            first, second = source_rows(
                source, layer, base, other, inner, live, shared, SRC, SRC_PAGE
            )
            own = dst_table + (layer * DST_PAGE.heads + other) * DST.table + inner * 0
            one, two = coordinates(
                first, second, own, head % DST.joined, other, inside, DST, DST_PAGE, False
            )
            low += one
            high += two
        at = data_at(target_base, head, inner, DST, DST_PAGE)
        kinds_at = meta_at(target_base, head, DST, DST_PAGE) + inner
        place = (at, kinds_at, kinds_at + DST_PAGE.slots)
        store_coordinates(dst, dst_meta, place, inside, low, high, DST)
    else:
        first, second = source_rows(source, layer, base, head, inner, live, shared, SRC, SRC_PAGE)
        shared = tl.load(dst_scale + layer * dst_width + head % dst_width)
        index = layer * DST_PAGE.heads + head
        target = (dst, dst_meta, dst_table, index * DST.table + inner * 0)
        store_tile(
            target, target_base, head, inner, inside, first, second, shared, saturated, DST,
            DST_PAGE,
        )  # fmt: skip
