"""Device functions that read rows of a page: one tile loader for each family of formats.

A vector is handled as two halves (dims i and i + D/2): rotary embedding pairs them, 4-bit codes
share a byte, and every format so has one shape, [rows, D/2] twice. `P` is a `Plane`, `PAGE` a
`Page`. A place is a tuple (byte offset of the layer in the page [n], head, slot in the page [n]).
"""

import triton
import triton.language as tl


@triton.jit
def data_at(base, head, inner, P: tl.constexpr, PAGE: tl.constexpr):
    """Element of the data pointer where each row begins."""
    at = (base + P.start) // P.item + (head * PAGE.slots + inner) * P.row
    return tl.multiple_of(at, P.align)


@triton.jit
def meta_at(base, head, P: tl.constexpr, PAGE: tl.constexpr):
    """16-bit element where the metadata of a page's head begins."""
    return (base + P.meta) // 2 + head * (P.kinds * PAGE.slots)


@triton.jit
def load_scale(meta, at, live):
    """Read fp16 metadata at elements `at` as fp32, zero where not `live`."""
    return tl.load(meta + at, mask=live, other=0).to(tl.float32)


@triton.jit
def load_field(ptr, at, live, HALF: tl.constexpr, WIDTH: tl.constexpr):
    """Codes of a field of WIDTH bits that begins at byte `at` [n]: two [n, HALF]."""
    BYTES: tl.constexpr = HALF * WIDTH // 4
    dims = tl.arange(0, HALF)
    if WIDTH == 4:
        packed = tl.load(ptr + at[:, None] + dims[None, :], mask=live[:, None], other=0)
        first = packed & 15
        second = packed >> 4
    else:
        packed = tl.load(ptr + at[:, None] + (dims % BYTES)[None, :], mask=live[:, None], other=0)
        shifted = packed.to(tl.int32) >> (dims // BYTES * WIDTH)[None, :]
        first = shifted & (2**WIDTH - 1)
        second = (shifted >> 4) & (2**WIDTH - 1)
    return first, second


@triton.jit
def load_codes(ptr, at, live, P: tl.constexpr, HALF: tl.constexpr, OUT: tl.constexpr):
    """Numbers of rows as they lie: packed codes as integers, others as OUT.

    8-bit floats come through fp16, times `P.factor`. Rows that are not `live` are not read.
    """
    if P.packed and P.bits == 3:
        first, second = load_field(ptr, at, live, HALF, 2)
        high, higher = load_field(ptr, at + HALF // 2, live, HALF, 1)
        first = first | (high << 2)
        second = second | (higher << 2)
    elif P.packed:
        first, second = load_field(ptr, at, live, HALF, P.bits)
    else:
        where = at[:, None] + tl.arange(0, HALF)[None, :]
        first = tl.load(ptr + where, mask=live[:, None], other=0)
        second = tl.load(ptr + where + HALF, mask=live[:, None], other=0)
        if P.family == "e4m3":
            first = ((first.to(tl.int16) << 7) & -16385).to(tl.float16, bitcast=True)
            second = ((second.to(tl.int16) << 7) & -16385).to(tl.float16, bitcast=True)
        elif P.family == "e5m2":
            first = (first.to(tl.int16) << 8).to(tl.float16, bitcast=True)
            second = (second.to(tl.int16) << 8).to(tl.float16, bitcast=True)
        first = first.to(OUT)
        second = second.to(OUT)
    return first, second


@triton.jit
def block_scale(meta, at, live, dims, P: tl.constexpr, S: tl.constexpr):
    """NVFP4's e4m3 scale of each (row, dim), fp32 [n, HALF]; two blocks share a 16-bit number."""
    block = dims // P.group
    pair = tl.load(meta + at[:, None] + (block // 2 * S)[None, :], mask=live[:, None], other=0)
    bits = pair.to(tl.int16, bitcast=True).to(tl.int32) >> (block % 2 * 8)[None, :]
    return ((bits & 127) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def e2m1(codes):
    """E2M1 codes to fp32, exactly: sign, exponent and mantissa move to fp16's places."""
    bits = ((codes.to(tl.int32) & 8) << 12) | ((codes.to(tl.int32) & 7) << 9)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def channel_decode(codes, meta, at, live, dims, P: tl.constexpr, S: tl.constexpr):
    """code * scale + minimum of each row's channel groups, fp32 [n, HALF]; `at` [n]."""
    places = at[:, None] + (dims // P.group * S)[None, :]
    own = load_scale(meta, places, live[:, None])
    low = load_scale(meta, places + P.kinds // 2 * S, live[:, None])
    return codes.to(tl.float32) * own + low


@triton.jit
def token_decode(codes, meta, at, inner, live, dims, P: tl.constexpr, PAGE: tl.constexpr):
    """code * scale + minimum of KIVI's keys, fp32 [n, HALF]; `at` begins the head's metadata."""
    places = (at + inner // P.group * (2 * PAGE.half))[:, None] + dims[None, :]
    own = load_scale(meta, places, live[:, None])
    low = load_scale(meta, places + PAGE.slots // P.group * (2 * PAGE.half), live[:, None])
    return codes.to(tl.float32) * own + low


@triton.jit
def put_back(first, second, meta, at, live, dims, PAGE: tl.constexpr):
    """Rows with their exact number in its place; value and place lie from element `at` [n] on."""
    value = load_scale(meta, at, live)[:, None]
    place = load_scale(meta, at + PAGE.slots, live)[:, None]
    first = tl.where(dims[None, :] == place, value, first)
    second = tl.where(dims[None, :] + PAGE.half == place, value, second)
    return first, second


@triton.jit
def nuq_decode(first, second, meta, table, at, live, P: tl.constexpr, PAGE: tl.constexpr):
    """KVQuant's codes to numbers; `table` begins the head's own, `at` [n] the rows' metadata."""
    dims = tl.arange(0, PAGE.half)
    levels = table
    if P.family == "nuq_k":
        levels = table + 4 * PAGE.half
    first = tl.load(levels + first.to(tl.int32))
    second = tl.load(levels + second.to(tl.int32))
    if P.family == "nuq_k":
        half = table + 2 * PAGE.half + dims
        first = tl.load(table + dims)[None, :] + tl.load(half)[None, :] * first
        middle = tl.load(table + PAGE.half + dims)[None, :]
        second = middle + tl.load(half + PAGE.half)[None, :] * second
    else:
        own = load_scale(meta, at, live)[:, None]
        middle = load_scale(meta, at + PAGE.slots, live)[:, None]
        first = middle + own * first
        second = middle + own * second
        at += 2 * PAGE.slots
    return put_back(first, second, meta, at, live, dims, PAGE)


@triton.jit
def low_rank_decode(source, base, head, inner, live, P: tl.constexpr, PAGE: tl.constexpr):
    """Mean plus coordinates times the basis, one coordinate after another: two fp32 [n, HALF].

    Joined heads hold a part of the coordinates each, and every head reads all parts.
    """
    ptr, meta, table = source
    ROWS: tl.constexpr = inner.shape[0]
    EACH: tl.constexpr = P.rank // P.joined
    PER: tl.constexpr = EACH // 2 if P.packed else EACH  # coordinates before bytes come again
    dims = tl.arange(0, PAGE.half)
    first = tl.zeros([ROWS, PAGE.half], tl.float32) + tl.load(table + dims)[None, :]
    second = tl.zeros([ROWS, PAGE.half], tl.float32) + tl.load(table + PAGE.half + dims)[None, :]
    for part in range(P.joined):
        other = head // P.joined * P.joined + part
        at = data_at(base, other, inner, P, PAGE)
        if P.packed:
            place = meta_at(base, other, P, PAGE) + inner
            own = load_scale(meta, place, live)
            low = load_scale(meta, place + PAGE.slots, live)
        for number in range(EACH):
            raw = tl.load(ptr + at + number % PER, mask=live, other=0)
            if P.packed:
                code = (raw.to(tl.int32) >> (number // PER * 4)) & 15
                found = code.to(tl.float32) * own + low
            else:
                found = raw.to(tl.float32)
            row = table + (1 + part * EACH + number) * (2 * PAGE.half) + dims
            first += found[:, None] * tl.load(row)[None, :]
            second += found[:, None] * tl.load(row + PAGE.half)[None, :]
    return first, second


@triton.jit
def read_tile(
    source, base, head, inner, live, P: tl.constexpr, PAGE: tl.constexpr, OUT: tl.constexpr
):
    """Rows as a product takes them, two [n, HALF] of type OUT; what folds around it is left out.

    source: (data, meta, table), the head's own table. Families whose scales do not fold are decoded
    number by number.
    """
    ptr, meta, table = source
    at = data_at(base, head, inner, P, PAGE)
    if P.family == "low_rank":
        first, second = low_rank_decode(source, base, head, inner, live, P, PAGE)
    else:
        first, second = load_codes(ptr, at, live, P, PAGE.half, OUT)
    if P.family == "nuq_k" or P.family == "nuq_v":
        place = meta_at(base, head, P, PAGE) + inner
        first, second = nuq_decode(first, second, meta, table, place, live, P, PAGE)
    elif P.family == "lloyd":
        first = tl.load(table + first.to(tl.int32))
        second = tl.load(table + second.to(tl.int32))
    elif P.family == "nvfp4" or (P.family == "channels" and P.fold == 0):
        dims = tl.arange(0, PAGE.half)
        place = meta_at(base, head, P, PAGE) + inner
        if P.family == "nvfp4":
            first = e2m1(first) * block_scale(meta, place, live, dims, P, PAGE.slots)
            dims += PAGE.half
            second = e2m1(second) * block_scale(meta, place, live, dims, P, PAGE.slots)
        else:
            first = channel_decode(first, meta, place, live, dims, P, PAGE.slots)
            dims += PAGE.half
            second = channel_decode(second, meta, place, live, dims, P, PAGE.slots)
    return first.to(OUT), second.to(OUT)


@triton.jit
def read_fold(meta, base, head, inner, live, P: tl.constexpr, PAGE: tl.constexpr):
    """What folds around products, fp32 [n] each: scale and minimum of both halves.

    Where a format has no such number, another comes in its place and is not used.
    """
    at = meta_at(base, head, P, PAGE) + inner
    own = load_scale(meta, at, live)
    other, low, lower = own, own, own
    if P.fold == 2:
        low = load_scale(meta, at + PAGE.slots, live)
        lower = low
    elif P.fold == 4:
        other = load_scale(meta, at + PAGE.slots, live)
        low = load_scale(meta, at + 2 * PAGE.slots, live)
        lower = load_scale(meta, at + 3 * PAGE.slots, live)
    return own, other, low, lower


@triton.jit
def decode_tile(source, base, head, inner, live, shared, P: tl.constexpr, PAGE: tl.constexpr):
    """Rows decoded to fp32 in the basis they are stored in, two [n, HALF]; `shared` fits them."""
    ptr, meta, table = source
    first, second = read_tile(source, base, head, inner, live, P, PAGE, tl.float32)
    if P.family == "tokens":
        dims = tl.arange(0, PAGE.half)
        at = meta_at(base, head, P, PAGE) + inner * 0
        first = token_decode(first, meta, at, inner, live, dims, P, PAGE)
        dims += PAGE.half
        second = token_decode(second, meta, at, inner, live, dims, P, PAGE)
    elif P.fold > 0:
        own, other, low, lower = read_fold(meta, base, head, inner, live, P, PAGE)
        first = first * (own * P.factor)[:, None]
        second = second * (other * P.factor)[:, None]
        if P.fold > 1:
            first = first + low[:, None]
            second = second + lower[:, None]
    elif P.shared > 0:
        first = first * (shared * P.factor)
        second = second * (shared * P.factor)
    return first, second
