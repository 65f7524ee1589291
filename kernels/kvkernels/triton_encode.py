"""Device functions that encode rows into a page: the numbers of `formats`, family by family.

Rows come as two halves, fp32 [n, D/2] each, and go to places as in `triton_tiles`.
"""

import triton
import triton.language as tl


@triton.jit
def round_even(x):
    """Round fp32 below 2**22 to the nearest integer, ties to even."""
    magic = 12582912.0  # 1.5 * 2**23: the sum has no fraction bits
    return (x + magic) - magic


@triton.jit
def clamp(x, least, most):
    """x between two numbers."""
    return tl.minimum(tl.maximum(x, least), most)


@triton.jit
def divide(x, y):
    """x / y rounded to nearest, y broadcast against x."""
    return tl.div_rn(x, y + x * 0)


@triton.jit
def fp8_code(x, MANTISSA: tl.constexpr):
    """Round fp32 within range to the bits (int32) of e4m3fn (3 mantissa bits) or e5m2 (2).

    Times 2**-120 (2**-112) the exponent biases of the type and of fp32 coincide, subnormals
    included, so that a code is the top of the fp32 bits.
    """
    DROPPED: tl.constexpr = 23 - MANTISSA
    if MANTISSA == 3:
        x = x * 7.52316384526264e-37
    else:
        x = x * 1.925929944387236e-34
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    bits = bits & 0x7FFFFFFF
    return ((bits + (2 ** (DROPPED - 1) - 1) + ((bits >> DROPPED) & 1)) >> DROPPED) | sign


@triton.jit
def scale16(x):
    """A positive scale as fp16, at least its smallest number above zero."""
    return clamp(x, 5.960464477539063e-08, 65504.0).to(tl.float16)


@triton.jit
def sum_parts(codes, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Join PARTS stretches of codes [n, HALF], each WIDTH bits above the one before."""
    parts = tl.reshape(codes, [codes.shape[0], PARTS, codes.shape[1] // PARTS])
    shift = tl.arange(0, PARTS) * WIDTH
    return tl.sum(parts << shift[None, :, None], 1)


@triton.jit
def store_codes(ptr, at, live, first, second, HALF: tl.constexpr, BITS: tl.constexpr):
    """Pack int32 codes, two [n, HALF], as `formats.packing` does."""
    if BITS == 4:
        where = at[:, None] + tl.arange(0, HALF)[None, :]
        tl.store(ptr + where, (first | (second << 4)).to(tl.uint8), mask=live[:, None])
    else:
        low = sum_parts(first & 3, 2, 2) | (sum_parts(second & 3, 2, 2) << 4)
        where = at[:, None] + tl.arange(0, HALF // 2)[None, :]
        tl.store(ptr + where, low.to(tl.uint8), mask=live[:, None])
        if BITS == 3:
            high = sum_parts(first >> 2, 4, 1) | (sum_parts(second >> 2, 4, 1) << 4)
            where = at[:, None] + HALF // 2 + tl.arange(0, HALF // 4)[None, :]
            tl.store(ptr + where, high.to(tl.uint8), mask=live[:, None])


@triton.jit
def affine_codes(x, own, low, LEVELS: tl.constexpr):
    """Codes int32 of x between `low` and LEVELS steps of `own` (fp16, broadcast)."""
    codes = divide(x - low.to(tl.float32), own.to(tl.float32))
    return round_even(clamp(codes, 0.0, LEVELS)).to(tl.int32)


@triton.jit
def affine_numbers(top, low, LEVELS: tl.constexpr):
    """fp16 scale and minimum of groups that reach from `low` to `top`."""
    small = clamp(low, -65504.0, 65504.0).to(tl.float16)
    return scale16((top - small.to(tl.float32)) * (1 / LEVELS)), small


@triton.jit
def count_outside(first, second, live, most, saturated):
    """Add the numbers beyond +-most to a counter."""
    outside = ((tl.abs(first) > most) & live[:, None]).to(tl.int32)
    outside += ((tl.abs(second) > most) & live[:, None]).to(tl.int32)
    count = tl.sum(tl.sum(outside, 1), 0)
    tl.atomic_add(saturated, count.to(tl.int64), mask=count > 0)


@triton.jit
def store_fp8(
    ptr, meta, place, live, first, second, shared, saturated, P: tl.constexpr, HALF: tl.constexpr
):
    """8-bit floats with a scale of the row, or a shared one; counts what that clamps."""
    at, kinds_at = place
    MANTISSA: tl.constexpr = 3 if P.family == "e4m3" else 2
    TOP: tl.constexpr = 448.0 if P.family == "e4m3" else 57344.0
    if P.fold == 1:
        top = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        own = scale16(top * (1 / TOP))
        tl.store(meta + kinds_at, own, mask=live)
        shared = own.to(tl.float32)[:, None]
    first = divide(first, shared)
    second = divide(second, shared)
    if P.fold == 0:
        count_outside(first, second, live, TOP, saturated)
    where = at[:, None] + tl.arange(0, HALF)[None, :]
    one = fp8_code(clamp(first, -TOP, TOP), MANTISSA).to(tl.int8)
    two = fp8_code(clamp(second, -TOP, TOP), MANTISSA).to(tl.int8)
    tl.store(ptr + where, one, mask=live[:, None])
    tl.store(ptr + where + HALF, two, mask=live[:, None])


@triton.jit
def store_int8(ptr, meta, place, live, first, second, HALF: tl.constexpr):
    """int8 with a scale of the row."""
    at, kinds_at = place
    top = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
    own = scale16(top * (1 / 127))
    wide = own.to(tl.float32)[:, None]
    where = at[:, None] + tl.arange(0, HALF)[None, :]
    one = round_even(clamp(divide(first, wide), -127.0, 127.0)).to(tl.int8)
    two = round_even(clamp(divide(second, wide), -127.0, 127.0)).to(tl.int8)
    tl.store(ptr + where, one, mask=live[:, None])
    tl.store(ptr + where + HALF, two, mask=live[:, None])
    tl.store(meta + kinds_at, own, mask=live)


@triton.jit
def store_uint(ptr, meta, place, live, first, second, P: tl.constexpr, PAGE: tl.constexpr):
    """Unsigned codes with scale and minimum of the row."""
    at, kinds_at = place
    LEVELS: tl.constexpr = 2**P.bits - 1
    top = tl.maximum(tl.max(first, 1), tl.max(second, 1))
    own, low = affine_numbers(top, tl.minimum(tl.min(first, 1), tl.min(second, 1)), LEVELS)
    one = affine_codes(first, own[:, None], low[:, None], LEVELS)
    two = affine_codes(second, own[:, None], low[:, None], LEVELS)
    store_codes(ptr, at, live, one, two, PAGE.half, P.bits)
    tl.store(meta + kinds_at, own, mask=live)
    tl.store(meta + kinds_at + PAGE.slots, low, mask=live)


@triton.jit
def channel_codes(x, meta, at, live, P: tl.constexpr, PAGE: tl.constexpr):
    """Codes of half a row in groups of channels; stores their numbers from element `at` [n]."""
    ROWS: tl.constexpr = x.shape[0]
    GROUPS: tl.constexpr = PAGE.half // P.group
    LEVELS: tl.constexpr = 2**P.bits - 1
    parts = tl.reshape(x, [ROWS, GROUPS, P.group])
    own, low = affine_numbers(tl.max(parts, 2), tl.min(parts, 2), LEVELS)  # [n, GROUPS]
    places = at[:, None] + (tl.arange(0, GROUPS) * PAGE.slots)[None, :]
    tl.store(meta + places, own, mask=live[:, None])
    tl.store(meta + places + P.kinds // 2 * PAGE.slots, low, mask=live[:, None])
    codes = affine_codes(parts, own[:, :, None], low[:, :, None], LEVELS)
    return tl.reshape(codes, [ROWS, PAGE.half])


@triton.jit
def e2m1_code(x):
    """fp32 to E2M1 codes (int32), ties to even, saturating at 6."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code | ((x.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def block_codes(x, meta, at, live, P: tl.constexpr, PAGE: tl.constexpr):
    """NVFP4 codes of half a row; stores its block scales, two a 16-bit number, from `at` [n]."""
    ROWS: tl.constexpr = x.shape[0]
    PAIRS: tl.constexpr = PAGE.half // P.group // 2
    blocks = tl.reshape(x, [ROWS, PAIRS * 2, P.group])
    own = clamp(tl.max(tl.abs(blocks), 2) * (1 / 6.0), 0.001953125, 448.0)
    bits = fp8_code(own, 3)  # [n, blocks]
    wide = (bits << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    codes = e2m1_code(divide(blocks, wide[:, :, None]))
    low, high = tl.split(tl.reshape(bits, [ROWS, PAIRS, 2]))
    both = (low | (high << 8)).to(tl.int16).to(tl.float16, bitcast=True)
    places = at[:, None] + (tl.arange(0, PAIRS) * PAGE.slots)[None, :]
    tl.store(meta + places, both, mask=live[:, None])
    return tl.reshape(codes, [ROWS, PAGE.half])


@triton.jit
def store_nvfp4(
    ptr, meta, place, live, first, second, shared, saturated, P: tl.constexpr, PAGE: tl.constexpr
):
    """E2M1 codes in blocks; counts what no block scale reaches."""
    at, kinds_at = place
    first = divide(first, shared)
    second = divide(second, shared)
    count_outside(first, second, live, 2688.0, saturated)
    one = block_codes(first, meta, kinds_at, live, P, PAGE)
    kinds_at += PAGE.half // P.group // 2 * PAGE.slots
    two = block_codes(second, meta, kinds_at, live, P, PAGE)
    store_codes(ptr, at, live, one, two, PAGE.half, P.bits)


@triton.jit
def level_codes(x, table, BITS: tl.constexpr):
    """Index of the nearest of 2**BITS rising levels, by halving, and the level."""
    codes = tl.zeros(x.shape, tl.int32)
    for bit in tl.static_range(BITS):
        middle = codes + 2 ** (BITS - 1 - bit)
        bound = (tl.load(table + middle - 1) + tl.load(table + middle)) / 2
        codes = tl.where(x > bound, middle, codes)
    return codes, tl.load(table + codes)


@triton.jit
def store_lloyd(ptr, meta, table, place, live, first, second, P: tl.constexpr, PAGE: tl.constexpr):
    """Nearest levels of the unit vector, and the norm over that of the levels."""
    at, kinds_at = place
    norm = tl.sqrt_rn(tl.sum(first * first, 1) + tl.sum(second * second, 1))
    unit = divide((2 * PAGE.half) ** 0.5, tl.maximum(norm, 1e-30))[:, None]
    one, near = level_codes(first * unit, table, P.bits)
    two, nearer = level_codes(second * unit, table, P.bits)
    found = tl.sqrt_rn(tl.sum(near * near, 1) + tl.sum(nearer * nearer, 1))
    store_codes(ptr, at, live, one, two, PAGE.half, P.bits)
    tl.store(meta + kinds_at, clamp(divide(norm, found), 0.0, 65504.0).to(tl.float16), mask=live)


@triton.jit
def token_codes(x, meta, at, P: tl.constexpr, PAGE: tl.constexpr):
    """Codes of half of all rows of a page in groups of tokens; stores their numbers from `at`."""
    GROUPS: tl.constexpr = PAGE.slots // P.group
    LEVELS: tl.constexpr = 2**P.bits - 1
    parts = tl.reshape(x, [GROUPS, P.group, PAGE.half])
    own, low = affine_numbers(tl.max(parts, 1), tl.min(parts, 1), LEVELS)  # [GROUPS, HALF]
    places = at + tl.arange(0, GROUPS)[:, None] * (2 * PAGE.half) + tl.arange(0, PAGE.half)[None, :]
    tl.store(meta + places, own)
    tl.store(meta + places + GROUPS * (2 * PAGE.half), low)
    codes = affine_codes(parts, own[:, None, :], low[:, None, :], LEVELS)
    return tl.reshape(codes, [PAGE.slots, PAGE.half])
