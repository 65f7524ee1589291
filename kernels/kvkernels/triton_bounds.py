"""The Triton twin of `bounds`: the same operations with the same signatures, for cuda."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels.api import FormatState, RopeTable
from kvkernels.bounds import bound_bytes, make_bounds
from kvkernels.layout import PageSpec
from kvkernels.triton_formats import page_of, plane_of, shared_scale, table_of
from kvkernels.triton_rotation import rotate_pair
from kvkernels.triton_tiles import decode_tile

__all__ = ["bound_bytes", "make_bounds", "score_pages", "select_pages", "update_bounds"]

SCORE_BLOCK = 64  # pages of one program


@triton.jit
def outward(x, UP: tl.constexpr):
    """fp32 to the nearest bf16 that is not below it, or not above it."""
    bits = x.to(tl.int32, bitcast=True)
    if UP:
        bits = bits + tl.where(bits >= 0, 0xFFFF, 0)
    else:
        bits = bits + tl.where(bits < 0, 0xFFFF, 0)
    bits = bits & -0x10000
    return bits.to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit(do_not_specialize=["first_layer"])
def bounds_kernel(
    k_arena, meta, table, offsets, rows, pos, cos, sin, k_scale, bounds, first_layer, width,
    num_layers, K: tl.constexpr, PAGE: tl.constexpr, BLOCK_S: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """Least and largest number of each key channel of one (page, layer, head)."""
    item = tl.program_id(0)
    layer = (first_layer + tl.program_id(1) // PAGE.heads).to(tl.int64)
    head = tl.program_id(1) % PAGE.heads
    inner = tl.arange(0, BLOCK_S)
    live = inner < PAGE.slots
    base = tl.load(offsets + item) + layer * PAGE.layer_bytes
    shared = tl.load(k_scale + layer * width + head % width)
    table += (layer * PAGE.heads + head) * K.table
    first, second = decode_tile((k_arena, meta, table), base, head, inner, live, shared, K, PAGE)
    if K.rotated:
        first, second = rotate_pair(first, second, PAGE)
    dims = tl.arange(0, PAGE.half)
    if ROPE:
        place = tl.load(pos + item * PAGE.slots + inner, mask=live, other=0)
        angle = place[:, None] * PAGE.half + dims[None, :]
        c = tl.load(cos + angle, mask=live[:, None], other=0)
        s = tl.load(sin + angle, mask=live[:, None], other=0)
        turned = first * c - second * s
        second = second * c + first * s
        first = turned
    at = bounds + ((tl.load(rows + item) * num_layers + layer) * PAGE.heads + head) * (
        4 * PAGE.half
    )
    for half in tl.static_range(2):
        x = first if half == 0 else second
        low = tl.min(tl.where(live[:, None], x, float("inf")), 0)
        high = tl.max(tl.where(live[:, None], x, float("-inf")), 0)
        where = at + half * PAGE.half + dims
        tl.store(where, outward(low, False))
        tl.store(where + 2 * PAGE.half, outward(high, True))


def update_bounds(
    arena: Tensor,
    spec: PageSpec,
    offsets: Tensor,
    state: FormatState,
    bounds: Tensor,
    rows: Tensor,
    *,
    layers: range,
    pos: Tensor | None = None,
    rope_table: RopeTable | None = None,
) -> None:
    """Compute the bounds of full pages in some layers; see `bounds.update_bounds`."""
    if not offsets.numel():
        return
    rotates = rope_table is not None and pos is not None
    cos, sin = rope_table if rope_table is not None else (bounds, bounds)
    scale, width = shared_scale(spec, state, "k")
    bounds_kernel[(offsets.numel(), len(layers) * spec.num_kv_heads)](
        arena.view(spec.k.dtype),
        arena.view(torch.float16),
        table_of(spec, "k", state),
        offsets,
        rows,
        offsets if pos is None else pos.contiguous(),
        cos,
        sin,
        scale,
        bounds,
        layers.start,
        width,
        bounds.shape[1],
        K=plane_of(spec, "k"),
        PAGE=page_of(spec),
        BLOCK_S=triton.next_power_of_2(spec.block_size),
        ROPE=rotates,
        num_warps=2,
    )


@triton.jit(do_not_specialize=["layer"])
def score_kernel(
    q, bounds, rows, scores, layer, num_layers, num_groups, num_rows, pages,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_P: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Largest bound over the heads of a group, for one query row and a block of pages."""
    token = tl.program_id(0) // num_groups
    group = tl.program_id(0) % num_groups
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    line = (group * num_rows + token).to(tl.int64) * pages
    row = tl.load(rows + line + p, mask=p < pages, other=-1)
    live = row >= 0
    dims = tl.arange(0, D)
    share = tl.arange(0, BLOCK_G)
    best = tl.full([BLOCK_P], float("-inf"), tl.float32)
    for head in range(H):
        at = (token * num_groups + group) * (H * G) + head * G + share
        query = tl.load(
            q + at[:, None].to(tl.int64) * D + dims[None, :], mask=(share < G)[:, None], other=0
        ).to(DOT)
        where = ((row * num_layers + layer) * H + head) * (2 * D)
        low = tl.load(bounds + where[:, None] + dims[None, :], mask=live[:, None], other=0)
        high = tl.load(bounds + where[:, None] + D + dims[None, :], mask=live[:, None], other=0)
        positive = tl.where(query > 0, query, 0.0).to(DOT)
        negative = tl.where(query < 0, query, 0.0).to(DOT)
        upper = tl.dot(positive, tl.trans(high.to(DOT)), input_precision="ieee")
        upper = tl.dot(negative, tl.trans(low.to(DOT)), upper, input_precision="ieee")
        upper = tl.where((share < G)[:, None], upper, float("-inf"))
        best = tl.maximum(best, tl.max(upper, 0))
    tl.store(scores + line + p, tl.where(live, best, float("-inf")), mask=p < pages)


def score_pages(q: Tensor, bounds: Tensor, layer: int, rows: Tensor) -> Tensor:
    """Largest score that a page's keys can have with a query; see `bounds.score_pages`."""
    groups, count, pages = rows.shape
    heads, dim = bounds.shape[2], bounds.shape[-1]
    share = q.shape[1] // (groups * heads)
    scores = torch.empty(rows.shape, dtype=torch.float32, device=q.device)
    score_kernel[(count * groups, triton.cdiv(pages, SCORE_BLOCK))](
        q.contiguous(),
        bounds,
        rows.contiguous(),
        scores,
        layer,
        bounds.shape[1],
        groups,
        count,
        pages,
        H=heads,
        G=share,
        D=dim,
        BLOCK_G=max(16, triton.next_power_of_2(share)),
        BLOCK_P=SCORE_BLOCK,
        # bf16 times bf16 is exact in fp32; the interpreter multiplies bf16 wrongly
        DOT=tl.float32
        if q.dtype != torch.bfloat16 or triton.knobs.runtime.interpret
        else tl.bfloat16,
    )
    return scores


@triton.jit
def select_kernel(
    scores, last, counts, chosen, pages, most, num_first, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Radix selection: the bits of the k-th largest key are found from the highest down."""
    line = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK_P)
    newest = tl.load(last + line)
    wanted = tl.load(counts + line)
    score = tl.load(scores + line * pages + p, mask=p < pages, other=float("-inf"))
    score = tl.where(p >= newest, float("-inf"), score)
    score = tl.where((p < num_first) & (p <= newest), float("inf"), score)
    score = tl.where(p == newest, float("inf"), score)
    bits = score.to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648  # ordered, from 0 on
    key = tl.where(p < pages, key, -1)
    least = tl.zeros([1], tl.int64)
    for step in range(32):
        tried = least + (tl.full([1], 2147483648, tl.int64) >> step)
        enough = tl.sum((key >= tried).to(tl.int32), 0) >= wanted
        least = tl.where(enough, tried, least)
    above = key > least
    equal = key == least
    left = wanted - tl.sum(above.to(tl.int32), 0)
    taken = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= left))
    place = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(chosen + line * most + place, p.to(tl.int64), mask=taken)


def select_pages(
    scores: Tensor, last: Tensor, counts: Tensor, num_first: int, most: int | None = None
) -> Tensor:
    """The pages each query reads; see `bounds.select_pages`."""
    groups, count, pages = scores.shape
    most = int(counts.max()) if most is None else most
    chosen = torch.full((groups, count, most), -1, dtype=torch.int64, device=scores.device)
    select_kernel[(groups * count,)](
        scores,
        last.contiguous(),
        counts.contiguous(),
        chosen,
        pages,
        most,
        num_first,
        BLOCK_P=max(16, triton.next_power_of_2(pages)),
    )
    return chosen
