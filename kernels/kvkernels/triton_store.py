"""The device function that encodes rows into a page, whatever its format."""

import triton
import triton.language as tl

from kvkernels.triton_calibrated import store_low_rank, store_nuq
from kvkernels.triton_encode import (
    channel_codes,
    store_codes,
    store_fp8,
    store_int8,
    store_lloyd,
    store_nvfp4,
    store_uint,
    token_codes,
)
from kvkernels.triton_rotation import rotate_pair
from kvkernels.triton_tiles import data_at, meta_at


@triton.jit
def store_tile(
    target,
    base,
    head,
    inner,
    live,
    first,
    second,
    shared,
    saturated,
    P: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Encode rows and store data and metadata; `shared` is broadcast against the rows.

    target: (data, meta, table, where in it each row's own begins [n]).
    """
    ptr, meta, table, own = target
    at = data_at(base, head, inner, P, PAGE)
    head_at = meta_at(base, head, P, PAGE)
    kinds_at = head_at + inner
    HALF: tl.constexpr = PAGE.half
    if P.rotated:
        first, second = rotate_pair(first, second, PAGE)
    if P.family == "float":
        where = at[:, None] + tl.arange(0, HALF)[None, :]
        tl.store(ptr + where, first.to(ptr.dtype.element_ty), mask=live[:, None])
        tl.store(ptr + where + HALF, second.to(ptr.dtype.element_ty), mask=live[:, None])
    elif P.family == "e4m3" or P.family == "e5m2":
        store_fp8(ptr, meta, (at, kinds_at), live, first, second, shared, saturated, P, HALF)
    elif P.family == "int8":
        store_int8(ptr, meta, (at, kinds_at), live, first, second, HALF)
    elif P.family == "uint":
        store_uint(ptr, meta, (at, kinds_at), live, first, second, P, PAGE)
    elif P.family == "lloyd":
        store_lloyd(ptr, meta, table, (at, kinds_at), live, first, second, P, PAGE)
    elif P.family == "channels":
        one = channel_codes(first, meta, kinds_at, live, P, PAGE)
        kinds_at += HALF // P.group * PAGE.slots
        store_codes(
            ptr, at, live, one, channel_codes(second, meta, kinds_at, live, P, PAGE), HALF, P.bits
        )
    elif P.family == "nuq_k" or P.family == "nuq_v":
        store_nuq(ptr, meta, table + own, (at, kinds_at), live, first, second, P, PAGE)
    elif P.family == "low_rank":
        place = (at, kinds_at)
        store_low_rank(ptr, meta, table + own, place, head, live, first, second, P, PAGE)
    elif P.family == "tokens":
        one = token_codes(first, meta, head_at, P, PAGE)
        two = token_codes(second, meta, head_at + HALF, P, PAGE)
        store_codes(ptr, at, live, one, two, HALF, P.bits)
    else:
        store_nvfp4(ptr, meta, (at, kinds_at), live, first, second, shared, saturated, P, PAGE)
