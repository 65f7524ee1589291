"""Device functions that encode rows by a calibration table: KVQuant's levels, low-rank coordinates.

Rows come as in `triton_encode`; `own` [n] points to where each row's table begins.
"""

import triton
import triton.language as tl

from kvkernels.triton_encode import (
    affine_codes,
    affine_numbers,
    clamp,
    divide,
    scale16,
    store_codes,
)


@triton.jit
def first_place(first, second, wanted, PAGE: tl.constexpr):
    """Least dimension [n] whose number is `wanted` [n]; the last where none is (NaN)."""
    dims = tl.arange(0, PAGE.half)[None, :]
    last: tl.constexpr = 2 * PAGE.half - 1
    one = tl.min(tl.where(first == wanted[:, None], dims, last), 1)
    two = tl.min(tl.where(second == wanted[:, None], dims + PAGE.half, last), 1)
    return tl.minimum(one, two)


@triton.jit
def store_exact(meta, at, live, first, second, place, PAGE: tl.constexpr):
    """Store the number at `place` [n] and its place from element `at` [n] on."""
    dims = tl.arange(0, PAGE.half)[None, :]
    value = tl.sum(tl.where(dims == place[:, None], first, 0.0), 1)
    value += tl.sum(tl.where(dims + PAGE.half == place[:, None], second, 0.0), 1)
    tl.store(meta + at, clamp(value, -65504.0, 65504.0).to(tl.float16), mask=live)
    tl.store(meta + at + PAGE.slots, place.to(tl.float16), mask=live)


@triton.jit
def nearest_levels(x, levels, live, BITS: tl.constexpr):
    """Codes of the nearest of rising levels, of which each row has its own, int32."""
    codes = tl.zeros(x.shape, tl.int32)
    low = tl.load(levels, mask=live, other=0)
    for number in tl.static_range(1, 2**BITS):
        high = tl.load(levels + number, mask=live, other=0)
        codes += (x > ((low + high) / 2)[:, None]).to(tl.int32)
        low = high
    return codes


@triton.jit
def dense_range(first, second, PAGE: tl.constexpr):
    """Half and middle fp16 [n] of a row without one number, and that number's place [n]."""
    dims = tl.arange(0, PAGE.half)[None, :]
    top = tl.maximum(tl.max(first, 1), tl.max(second, 1))
    low = tl.minimum(tl.min(first, 1), tl.min(second, 1))
    top_at = first_place(first, second, top, PAGE)
    low_at = first_place(first, second, low, PAGE)
    rest = tl.where(dims == top_at[:, None], float("-inf"), first)
    also = tl.where(dims + PAGE.half == top_at[:, None], float("-inf"), second)
    next_top = tl.maximum(tl.max(rest, 1), tl.max(also, 1))
    rest = tl.where(dims == low_at[:, None], float("inf"), first)
    also = tl.where(dims + PAGE.half == low_at[:, None], float("inf"), second)
    next_low = tl.minimum(tl.min(rest, 1), tl.min(also, 1))
    upper = top - next_top >= next_low - low
    most = tl.where(upper, next_top, top)
    least = tl.where(upper, low, next_low)
    middle = clamp((most + least) * 0.5, -65504.0, 65504.0).to(tl.float16)
    return scale16((most - least) * 0.5), middle, tl.where(upper, top_at, low_at)


@triton.jit
def store_nuq(ptr, meta, own, place, live, first, second, P: tl.constexpr, PAGE: tl.constexpr):
    """KVQuant: nearest levels within a range, and one number exactly."""
    at, kinds_at = place
    levels = own
    if P.family == "nuq_k":
        where = own[:, None] + tl.arange(0, PAGE.half)[None, :]
        here = live[:, None]
        half = where + 2 * PAGE.half
        one = first - tl.load(where, mask=here, other=0)
        two = second - tl.load(where + PAGE.half, mask=here, other=0)
        one = divide(one, tl.load(half, mask=here, other=1))
        two = divide(two, tl.load(half + PAGE.half, mask=here, other=1))
        size = tl.maximum(tl.max(tl.abs(one), 1), tl.max(tl.abs(two), 1))
        exact = first_place(tl.abs(one), tl.abs(two), size, PAGE)
        levels = own + 4 * PAGE.half
    else:
        scale, middle, exact = dense_range(first, second, PAGE)
        tl.store(meta + kinds_at, scale, mask=live)
        tl.store(meta + kinds_at + PAGE.slots, middle, mask=live)
        wide = middle.to(tl.float32)[:, None]
        one = divide(first - wide, scale.to(tl.float32)[:, None])
        two = divide(second - wide, scale.to(tl.float32)[:, None])
        kinds_at += 2 * PAGE.slots
    store_exact(meta, kinds_at, live, first, second, exact, PAGE)
    one = nearest_levels(one, levels, live, P.bits)
    two = nearest_levels(two, levels, live, P.bits)
    store_codes(ptr, at, live, one, two, PAGE.half, P.bits)


@triton.jit
def coordinate(first, second, own, number, live, PAGE: tl.constexpr):
    """One coordinate [n] of rows without their mean."""
    row = own[:, None] + (1 + number) * (2 * PAGE.half) + tl.arange(0, PAGE.half)[None, :]
    one = tl.sum(first * tl.load(row, mask=live[:, None], other=0), 1)
    return one + tl.sum(second * tl.load(row + PAGE.half, mask=live[:, None], other=0), 1)


@triton.jit
def store_low_rank(ptr, meta, own, place, live, first, second, P: tl.constexpr, PAGE: tl.constexpr):
    """Coordinates of a head's basis, one after another; as codes in two passes."""
    at, kinds_at = place
    mean = own[:, None] + tl.arange(0, PAGE.half)[None, :]
    first = first - tl.load(mean, mask=live[:, None], other=0)
    second = second - tl.load(mean + PAGE.half, mask=live[:, None], other=0)
    if P.packed:
        top = coordinate(first, second, own, 0, live, PAGE)
        low = top
        for number in range(1, P.rank):
            found = coordinate(first, second, own, number, live, PAGE)
            top = tl.maximum(top, found)
            low = tl.minimum(low, found)
        scale, least = affine_numbers(top, low, 15)
        tl.store(meta + kinds_at, scale, mask=live)
        tl.store(meta + kinds_at + PAGE.slots, least, mask=live)
        for number in range(P.rank // 2):
            one = coordinate(first, second, own, number, live, PAGE)
            two = coordinate(first, second, own, number + P.rank // 2, live, PAGE)
            both = affine_codes(one, scale, least, 15) | (affine_codes(two, scale, least, 15) << 4)
            tl.store(ptr + at + number, both.to(tl.uint8), mask=live)
    else:
        for number in range(P.rank):
            found = coordinate(first, second, own, number, live, PAGE)
            tl.store(ptr + at + number, found.to(tl.float16), mask=live)
