"""Device functions of attention that its kernels share: queries of a tile, scores, values."""

import triton
import triton.language as tl

from kvkernels.triton_rotation import rotate_pair
from kvkernels.triton_tiles import decode_tile, load_scale, meta_at, read_fold, read_tile


@triton.jit
def load_queries(
    q,
    rows,
    row,
    start,
    head,
    num_groups,
    G: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    DOT: tl.constexpr,
):
    """Load a tile of queries; returns halves, where they lie, which are real, what they see."""
    first = tl.load(rows + row * 6)
    queries = tl.load(rows + row * 6 + 1)
    slots = tl.load(rows + row * 6 + 2)
    new = tl.load(rows + row * 6 + 3)
    first_new = tl.load(rows + row * 6 + 4)
    group = tl.load(rows + row * 6 + 5)
    m = start + tl.arange(0, BLOCK_M)
    step = m // G
    real = step < queries
    at = ((first + step) * num_groups + group) * (PAGE.heads * G) + head * G + m % G  # of [N * Hq]
    where = at[:, None].to(tl.int64) * (2 * PAGE.half) + tl.arange(0, PAGE.half)[None, :]
    q0 = tl.load(q + where, mask=real[:, None], other=0).to(DOT)
    q1 = tl.load(q + where + PAGE.half, mask=real[:, None], other=0).to(DOT)
    seen = tl.minimum(tl.maximum(step + 1 - first_new, 0), new)
    visible = tl.where(real, slots - new + seen, 0)
    return q0, q1, at, real, visible


@triton.jit
def row_sum(x):
    """Sum of each row in fp32."""
    return tl.sum(x.to(tl.float32), 1)


@triton.jit
def token_group_scores(
    q0, q1, k0, k1, meta, base, head, inner, P: tl.constexpr, PAGE: tl.constexpr, DOT: tl.constexpr
):
    """Scores against keys of one group of tokens: its scales go into q, its minima into a sum."""
    # every live slot of the tile is in one page and one group; the others say page 0
    at = tl.max(meta_at(base, head, P, PAGE) + inner // P.group * (2 * PAGE.half), 0)
    at += tl.arange(0, PAGE.half)
    lows = PAGE.slots // P.group * (2 * PAGE.half)
    wide0, wide1 = q0.to(tl.float32), q1.to(tl.float32)
    added = wide0 * load_scale(meta, at + lows, True)[None, :]
    added += wide1 * load_scale(meta, at + lows + PAGE.half, True)[None, :]
    s0 = (wide0 * load_scale(meta, at, True)[None, :]).to(DOT)
    s1 = (wide1 * load_scale(meta, at + PAGE.half, True)[None, :]).to(DOT)
    scores = tl.dot(s0, tl.trans(k0), input_precision="ieee")
    scores = tl.dot(s1, tl.trans(k1), scores, input_precision="ieee")
    return scores + tl.sum(added, 1)[:, None]


@triton.jit
def key_scores(
    q0,
    q1,
    key,
    base,
    head,
    inner,
    live,
    P: tl.constexpr,
    PAGE: tl.constexpr,
    DOT: tl.constexpr,
):
    """q . k for keys as they are stored, with per-token numbers folded around the products."""
    ptr, meta, table = key
    k0, k1 = read_tile(key, base, head, inner, live, P, PAGE, DOT)
    if P.family == "tokens":
        scores = token_group_scores(q0, q1, k0, k1, meta, base, head, inner, P, PAGE, DOT)
    elif P.fold == 4:
        own, other, low, lower = read_fold(meta, base, head, inner, live, P, PAGE)
        scores = tl.dot(q0, tl.trans(k0), input_precision="ieee") * own[None, :]
        scores += tl.dot(q1, tl.trans(k1), input_precision="ieee") * other[None, :]
        scores += row_sum(q0)[:, None] * low[None, :] + row_sum(q1)[:, None] * lower[None, :]
    else:
        scores = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        scores = tl.dot(q1, tl.trans(k1), scores, input_precision="ieee")
        if P.fold > 0:
            own, other, low, lower = read_fold(meta, base, head, inner, live, P, PAGE)
            scores = scores * own[None, :]
            if P.fold == 2:
                scores += (row_sum(q0) + row_sum(q1))[:, None] * low[None, :]
    return scores


@triton.jit
def rotated_scores(
    q0,
    q1,
    key,
    rope,
    slot_at,
    base,
    head,
    inner,
    live,
    shared,
    P: tl.constexpr,
    PAGE: tl.constexpr,
    DOT: tl.constexpr,
):
    """q . k for keys that are rotated to their positions as they are read."""
    pos, cos, sin = rope
    if P.shared == 2:  # the queries carry the scale of their head
        shared = 1.0
    k0, k1 = decode_tile(key, base, head, inner, live, shared, P, PAGE)
    if P.rotated:  # positions turn keys in their own basis
        k0, k1 = rotate_pair(k0, k1, PAGE)
    position = tl.load(pos + slot_at, mask=live, other=0)
    angle = position[:, None] * PAGE.half + tl.arange(0, PAGE.half)[None, :]
    c = tl.load(cos + angle, mask=live[:, None], other=0)
    s = tl.load(sin + angle, mask=live[:, None], other=0)
    r0 = (k0 * c - k1 * s).to(DOT)
    r1 = (k1 * c + k0 * s).to(DOT)
    scores = tl.dot(q0, tl.trans(r0), input_precision="ieee")
    return tl.dot(q1, tl.trans(r1), scores, input_precision="ieee")


@triton.jit
def score_tile(
    q0,
    q1,
    key,
    rope,
    log_count,
    pages,
    row,
    t,
    head,
    live,
    layer_start,
    shared,
    scale,
    width,
    P: tl.constexpr,
    PAGE: tl.constexpr,
    DOT: tl.constexpr,
    HAS_LOG: tl.constexpr,
    ROPE: tl.constexpr,
):
    """Scores of a tile against slots t, times log2(e): fp32 [BLOCK_M, BLOCK_N]; and their pages."""
    page = tl.load(pages + row * width + t // PAGE.slots, mask=live, other=0)
    base = page + layer_start
    inner = t % PAGE.slots
    slot_at = row * (width * PAGE.slots) + t
    if ROPE:
        scores = rotated_scores(
            q0, q1, key, rope, slot_at, base, head, inner, live, shared, P, PAGE, DOT
        )
    else:
        scores = key_scores(q0, q1, key, base, head, inner, live, P, PAGE, DOT)
        scale = scale * P.factor
        if P.shared == 1:
            scale = scale * shared
    scores = scores * scale
    if HAS_LOG:
        extra = tl.load(log_count + slot_at, mask=live, other=0)
        scores += extra[None, :] * 1.4426950408889634
    return scores, base, inner


@triton.jit
def add_values(
    acc,
    p,
    decay,
    value,
    base,
    head,
    inner,
    live,
    P: tl.constexpr,
    PAGE: tl.constexpr,
    DOT: tl.constexpr,
):
    """Decay the sums (two halves, two sums of minima) and add the values of a tile, p [M, N]."""
    acc0, acc1, low0, low1 = acc
    ptr, meta, table = value
    v0, v1 = read_tile(value, base, head, inner, live, P, PAGE, DOT)
    p0, p1 = p, p
    if P.fold > 0:
        own, other, low, lower = read_fold(meta, base, head, inner, live, P, PAGE)
        if P.fold > 1:
            low0 = low0 * decay + tl.sum(p * low[None, :], 1)
        if P.fold == 4:
            low1 = low1 * decay + tl.sum(p * lower[None, :], 1)
            p1 = p * other[None, :]
        p0 = p * own[None, :]
        if P.fold < 4:
            p1 = p0
    acc0 = tl.dot(p0.to(DOT), v0, acc0 * decay[:, None], input_precision="ieee")
    acc1 = tl.dot(p1.to(DOT), v1, acc1 * decay[:, None], input_precision="ieee")
    return acc0, acc1, low0, low1


@triton.jit
def mean_values(acc, total, shared, P: tl.constexpr):
    """Divide the sums of `add_values` by the total weight; two halves of the result."""
    acc0, acc1, low0, low1 = acc
    factor = P.factor / total
    if P.shared == 1:
        factor = factor * shared
    first = acc0 * factor[:, None]
    second = acc1 * factor[:, None]
    if P.fold > 1:
        if P.fold == 2:
            low1 = low0
        first += (low0 / total)[:, None]
        second += (low1 / total)[:, None]
    return first, second
