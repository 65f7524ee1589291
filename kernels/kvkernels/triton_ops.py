"""Device functions shared by the Triton kernels: rows of a page to numbers and back.

A vector is handled as two halves (dims i and i + D/2): int4 packs them in one byte, and rotary
embedding pairs them, so that every format and the rotation share one shape, [rows, D/2] twice.
"""

import triton
import triton.language as tl


@triton.jit
def load_pair(ptr, at, live, HALF: tl.constexpr, FMT: tl.constexpr, OUT: tl.constexpr):
    """Read codes of rows starting at element `at` [n]; returns two [n, HALF] of type OUT.

    fp8 comes as value / 256 (its bits moved into fp16). Rows that are not `live` are not read.
    """
    dims = tl.arange(0, HALF)
    where = at[:, None] + dims[None, :]
    mask = live[:, None]
    if FMT == "int4":
        packed = tl.load(ptr + where, mask=mask, other=0)
        first = (packed & 15).to(OUT)
        second = (packed >> 4).to(OUT)
    else:
        first = tl.load(ptr + where, mask=mask, other=0)
        second = tl.load(ptr + where + HALF, mask=mask, other=0)
        if FMT == "fp8_e4m3":
            first = ((first.to(tl.int16) << 7) & -16385).to(tl.float16, bitcast=True)
            second = ((second.to(tl.int16) << 7) & -16385).to(tl.float16, bitcast=True)
        first = first.to(OUT)
        second = second.to(OUT)
    return first, second


@triton.jit
def load_scale(meta, at, live):
    """Read fp16 metadata at elements `at` [n] as fp32, zero where not `live`."""
    return tl.load(meta + at, mask=live, other=0).to(tl.float32)


@triton.jit
def load_values(
    ptr, meta, at, meta_at, live, shared, S: tl.constexpr, HALF: tl.constexpr, FMT: tl.constexpr
):
    """Read and dequantise rows to fp32, two [n, HALF]; `meta_at` [n] is that of the scale."""
    first, second = load_pair(ptr, at, live, HALF, FMT, tl.float32)
    if FMT == "fp8_e4m3":
        first = first * (shared * 256.0)
        second = second * (shared * 256.0)
    if FMT == "int8" or FMT == "int4":
        scale = load_scale(meta, meta_at, live)[:, None]
        first = first * scale
        second = second * scale
    if FMT == "int4":
        low = load_scale(meta, meta_at + S, live)[:, None]
        first = first + low
        second = second + low
    return first, second


@triton.jit
def load_tile(
    q,
    rows,
    row,
    start,
    head,
    G: tl.constexpr,
    H: tl.constexpr,
    NUM_GROUPS,
    HALF: tl.constexpr,
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
    at = ((first + step) * NUM_GROUPS + group) * (H * G) + head * G + m % G  # row of [N * Hq]
    dims = tl.arange(0, HALF)
    where = at[:, None].to(tl.int64) * (2 * HALF) + dims[None, :]
    q0 = tl.load(q + where, mask=real[:, None], other=0).to(DOT)
    q1 = tl.load(q + where + HALF, mask=real[:, None], other=0).to(DOT)
    seen = tl.minimum(tl.maximum(step + 1 - first_new, 0), new)
    visible = tl.where(real, slots - new + seen, 0)
    return q0, q1, at, real, visible


@triton.jit
def score_tile(
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
    S: tl.constexpr,
    HALF: tl.constexpr,
    K_FMT: tl.constexpr,
    K_ITEM: tl.constexpr,
    K_ROW: tl.constexpr,
    K_META: tl.constexpr,
    K_KINDS: tl.constexpr,
    DOT: tl.constexpr,
    HAS_LOG: tl.constexpr,
    ROPE: tl.constexpr,
):
    """Scores of a tile against slots t, times log2(e): fp32 [BLOCK_M, BLOCK_N]."""
    inner = t % S
    at = (page + layer_start) // K_ITEM + (head * S + inner) * (K_ROW // K_ITEM)
    at = tl.multiple_of(at, 16 // K_ITEM)
    meta_at = (page + layer_start + K_META) // 2 + head * (K_KINDS * S) + inner
    if ROPE:
        k0, k1 = load_values(k_arena, meta, at, meta_at, live, k_shared, S, HALF, K_FMT)
        position = tl.load(pos + slot_at, mask=live, other=0)
        angle = position[:, None] * HALF + tl.arange(0, HALF)[None, :]
        c = tl.load(cos + angle, mask=live[:, None], other=0)
        s = tl.load(sin + angle, mask=live[:, None], other=0)
        r0 = (k0 * c - k1 * s).to(DOT)
        r1 = (k1 * c + k0 * s).to(DOT)
        scores = tl.dot(q0, tl.trans(r0), input_precision="ieee")
        scores = tl.dot(q1, tl.trans(r1), scores, input_precision="ieee") * scale
    else:
        k0, k1 = load_pair(k_arena, at, live, HALF, K_FMT, DOT)
        scores = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        scores = tl.dot(q1, tl.trans(k1), scores, input_precision="ieee")
        if K_FMT == "fp8_e4m3":
            scale = scale * k_shared * 256.0
        if K_FMT == "int8" or K_FMT == "int4":
            factor = load_scale(meta, meta_at, live) * scale
            scores = scores * factor[None, :]
        else:
            scores = scores * scale
        if K_FMT == "int4":
            low = load_scale(meta, meta_at + S, live) * scale
            total = tl.sum(q0.to(tl.float32), 1) + tl.sum(q1.to(tl.float32), 1)
            scores += total[:, None] * low[None, :]
    if HAS_LOG:
        extra = tl.load(log_count + slot_at, mask=live, other=0)
        scores += extra[None, :] * 1.4426950408889634
    return scores


@triton.jit
def round_even(x):
    """Round fp32 below 2**22 to the nearest integer, ties to even."""
    magic = 12582912.0  # 1.5 * 2**23: the sum has no fraction bits
    return (x + magic) - magic


@triton.jit
def fp8_code(x):
    """Round fp32 within +-448 to e4m3fn bits (int32), ties to even, with integer arithmetic.

    Times 2**-120 the exponent biases of e4m3 and fp32 coincide, subnormals included, so that a
    code is the top of the fp32 bits.
    """
    bits = (x * 7.52316384526264e-37).to(tl.int32, bitcast=True)  # times 2**-120
    sign = (bits >> 24) & 0x80
    bits = bits & 0x7FFFFFFF
    return ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) | sign


@triton.jit
def store_pair(
    ptr,
    meta,
    at,
    meta_at,
    live,
    first,
    second,
    shared,
    saturated,
    S: tl.constexpr,
    HALF: tl.constexpr,
    FMT: tl.constexpr,
):
    """Encode fp32 rows, two [n, HALF], and store data and metadata; counts what fp8 clamps."""
    where = at[:, None] + tl.arange(0, HALF)[None, :]
    mask = live[:, None]
    if FMT == "bf16" or FMT == "fp32":
        tl.store(ptr + where, first.to(ptr.dtype.element_ty), mask=mask)
        tl.store(ptr + where + HALF, second.to(ptr.dtype.element_ty), mask=mask)
    elif FMT == "fp8_e4m3":
        first = first / shared
        second = second / shared
        outside = ((tl.abs(first) > 448.0) & mask).to(tl.int32)
        outside += ((tl.abs(second) > 448.0) & mask).to(tl.int32)
        count = tl.sum(tl.sum(outside, 1), 0)
        tl.atomic_add(saturated, count.to(tl.int64), mask=count > 0)
        first = tl.minimum(tl.maximum(first, -448.0), 448.0)
        second = tl.minimum(tl.maximum(second, -448.0), 448.0)
        tl.store(ptr + where, fp8_code(first).to(tl.int8), mask=mask)
        tl.store(ptr + where + HALF, fp8_code(second).to(tl.int8), mask=mask)
    elif FMT == "int8":
        top = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        scale = tl.minimum(tl.maximum(top * (1 / 127), 5.960464477539063e-08), 65504.0)
        scale = scale.to(tl.float16)
        wide = scale.to(tl.float32)[:, None]
        one = round_even(tl.minimum(tl.maximum(tl.div_rn(first, wide + first * 0), -127.0), 127.0))
        two = round_even(
            tl.minimum(tl.maximum(tl.div_rn(second, wide + second * 0), -127.0), 127.0)
        )
        tl.store(ptr + where, one.to(tl.int8), mask=mask)
        tl.store(ptr + where + HALF, two.to(tl.int8), mask=mask)
        tl.store(meta + meta_at, scale, mask=live)
    else:
        top = tl.maximum(tl.max(first, 1), tl.max(second, 1))
        low = tl.minimum(tl.min(first, 1), tl.min(second, 1))
        low = tl.minimum(tl.maximum(low, -65504.0), 65504.0).to(tl.float16)
        base = low.to(tl.float32)
        scale = tl.minimum(tl.maximum((top - base) * (1 / 15), 5.960464477539063e-08), 65504.0)
        scale = scale.to(tl.float16)
        wide = scale.to(tl.float32)[:, None]
        one = tl.div_rn(first - base[:, None], wide + first * 0)
        two = tl.div_rn(second - base[:, None], wide + second * 0)
        one = round_even(tl.minimum(tl.maximum(one, 0.0), 15.0)).to(tl.int32)
        two = round_even(tl.minimum(tl.maximum(two, 0.0), 15.0)).to(tl.int32)
        tl.store(ptr + where, (one | (two << 4)).to(tl.uint8), mask=mask)
        tl.store(meta + meta_at, scale, mask=live)
        tl.store(meta + meta_at + S, low, mask=live)
