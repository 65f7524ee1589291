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
def of_group(x, head, JOINED: tl.constexpr):
    """Sum over the heads that are joined, for each of them: x [n], a head a row."""
    same = (head // JOINED)[:, None] == (head // JOINED)[None, :]
    return tl.sum(tl.where(same, x[None, :], 0.0), 1)


@triton.jit
def coordinates(
    first, second, own, part, head, live, P: tl.constexpr, PAGE: tl.constexpr, SUM: tl.constexpr
):
    """What rows add to the coordinates of one part, halves of it fp32 [n, P.columns] each.

    With SUM rows are heads and each gets what those that it is joined with add.
    """
    EACH: tl.constexpr = P.rank // P.joined
    mean = own[:, None] + tl.arange(0, PAGE.half)[None, :]
    first = first - tl.load(mean, mask=live[:, None], other=0)
    second = second - tl.load(mean + PAGE.half, mask=live[:, None], other=0)
    column = tl.arange(0, P.columns)[None, :]
    low = tl.zeros([first.shape[0], P.columns], tl.float32)
    high = low
    for number in range(EACH // 2):
        one = coordinate(first, second, own, part * EACH + number, live, PAGE)
        two = coordinate(first, second, own, part * EACH + EACH // 2 + number, live, PAGE)
        if SUM:
            one = of_group(one, head, P.joined)
            two = of_group(two, head, P.joined)
        low = tl.where(column == number, one[:, None], low)
        high = tl.where(column == number, two[:, None], high)
    return low, high


@triton.jit
def store_coordinates(ptr, meta, place, live, low, high, P: tl.constexpr):
    """Coordinates of rows, halves fp32 [n, P.columns] each, as fp16 or as codes."""
    at, kinds_at, lows_at = place
    HALF: tl.constexpr = P.rank // P.joined // 2
    column = tl.arange(0, P.columns)[None, :]
    inside = column < HALF
    where = at[:, None] + column
    here = live[:, None] & inside
    if P.packed:
        top = tl.where(inside, tl.maximum(low, high), float("-inf"))
        least = tl.where(inside, tl.minimum(low, high), float("inf"))
        scale, least = affine_numbers(tl.max(top, 1), tl.min(least, 1), 15)
        tl.store(meta + kinds_at, scale, mask=live)
        tl.store(meta + lows_at, least, mask=live)
        both = affine_codes(low, scale[:, None], least[:, None], 15)
        both |= affine_codes(high, scale[:, None], least[:, None], 15) << 4
        tl.store(ptr + where, both.to(tl.uint8), mask=here)
    else:
        tl.store(ptr + where, low.to(tl.float16), mask=here)
        tl.store(ptr + where + HALF, high.to(tl.float16), mask=here)


@triton.jit
def store_low_rank(
    ptr, meta, own, place, head, live, first, second, P: tl.constexpr, PAGE: tl.constexpr
):
    """Coordinates of rows in a basis; where heads are joined, the rows are a token's heads."""
    at, kinds_at = place
    low, high = coordinates(first, second, own, 0, head, live, P, PAGE, P.joined > 1)
    if P.joined > 1:
        mine = (head % P.joined)[:, None]
        for part in range(1, P.joined):
            one, two = coordinates(first, second, own, part, head, live, P, PAGE, True)
            low = tl.where(mine == part, one, low)
            high = tl.where(mine == part, two, high)
    store_coordinates(ptr, meta, (at, kinds_at, kinds_at + PAGE.slots), live, low, high, P)
