"""Bounds of the keys of a page, and the pages that a query is to read (CPU path).

Of each full page the least and the largest number of every key channel are kept. A query's score
against any key of the page is then at most the sum over channels of max(q * least, q * largest).
Source: Tang et al., Quest (arXiv 2406.10774); for query heads that share a KV head, and KV heads
that share a page, the largest bound counts.

bounds: bf16 [rows, num_layers, num_kv_heads, 2, head_dim], least numbers rounded down and largest
up, so that they stay bounds.

Landmarks are one vector a page, the mean of its keys, in [..., 1, head_dim]. A query head's scores
with them become a softmax over the pages, and the largest share counts. Pages whose mean stands
worst for one of their keys are *outliers*, which are read whatever their share. Source: ShadowKV
(arXiv 2410.21465).
"""

import torch
from torch import Tensor

from kvkernels.api import FormatState, RopeTable
from kvkernels.common import rotate
from kvkernels.layout import PageSpec
from kvkernels.pages import decode_pages, gather_pages

PAGE_BATCH = 64  # pages decoded at once; bounds the fp32 scratch


def bound_bytes(spec: PageSpec) -> int:
    """Bytes of the bounds of one page."""
    return spec.num_layers * spec.num_kv_heads * 2 * spec.head_dim * 2


def make_bounds(
    num_rows: int, spec: PageSpec, device: torch.device | str, num_vectors: int = 2
) -> Tensor:
    """Room for the bounds (2) or landmarks (1) of `num_rows` pages; nothing is valid in it."""
    shape = (num_rows, spec.num_layers, spec.num_kv_heads, num_vectors, spec.head_dim)
    return torch.empty(shape, dtype=torch.bfloat16, device=device)


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
    cosines: Tensor | None = None,
) -> None:
    """Compute the bounds or landmarks of full pages in some layers from the keys they hold.

    offsets, rows: int64 [n], where a page begins in the arena and where its bounds go. With
    `rope_table` keys are rotated to their positions first, pos int64 [n, S]. `cosines`, with
    landmarks only: fp32 [rows, num_layers, num_kv_heads] for the least cosine of a key to the mean.
    """
    part = slice(layers.start, layers.stop)
    for start in range(0, offsets.numel(), PAGE_BATCH):
        here = slice(start, start + PAGE_BATCH)
        count = offsets[here].numel()
        pages = torch.empty(count, spec.page_bytes, dtype=torch.uint8, device=arena.device)
        gather_pages(arena, spec, offsets[here], pages)
        keys = _keys(pages, spec, state, None if pos is None else pos[here], rope_table)[:, part]
        if bounds.shape[3] == 1:
            mean = keys.mean(3, keepdim=True)
            bounds[rows[here], part] = mean.to(torch.bfloat16)
            if cosines is not None:
                cosines[rows[here], part] = torch.cosine_similarity(keys, mean, dim=-1).amin(-1)
            continue
        low, high = keys.amin(3), keys.amax(3)
        bounds[rows[here], part, :, 0] = -round_up(-low)
        bounds[rows[here], part, :, 1] = round_up(high)


def least_cosines(
    pages: Tensor,
    spec: PageSpec,
    state: FormatState,
    *,
    pos: Tensor | None = None,
    rope_table: RopeTable | None = None,
) -> Tensor:
    """Least cosine of a key of each full page to the mean of its layer and head, fp32 [n].

    pages uint8 [n, page_bytes]; pos and rope_table as for `update_bounds`.
    """
    found = torch.empty(len(pages), device=pages.device)
    for start in range(0, len(pages), PAGE_BATCH):
        here = slice(start, start + PAGE_BATCH)
        keys = _keys(pages[here], spec, state, None if pos is None else pos[here], rope_table)
        mean = keys.mean(3, keepdim=True)
        found[here] = torch.cosine_similarity(keys, mean, dim=-1).amin((1, 2, 3))
    return found


def _keys(
    pages: Tensor, spec: PageSpec, state: FormatState, pos: Tensor | None, table: RopeTable | None
) -> Tensor:
    """Keys of pages as attention reads them, fp32 [n, L, H, S, D]."""
    keys = decode_pages(pages, spec, "k", state)
    if table is None or pos is None:
        return keys
    cos, sin = (part[pos][:, None, None] for part in table)
    return rotate(keys, cos, sin)


def round_up(x: Tensor) -> Tensor:
    """fp32 to the smallest bf16 that is not below it."""
    bits = x.contiguous().view(torch.int32)
    # a negative number grows as its magnitude is cut off
    added = (bits >= 0).to(torch.int32) * 0xFFFF
    return ((bits + added) & -0x10000).view(torch.float32).to(torch.bfloat16)


def score_pages(q: Tensor, bounds: Tensor, layer: int, rows: Tensor) -> Tensor:
    """Largest score that a page's keys can have with a query, fp32 [G, N, P]; or a page's share.

    q [N, Hq, D] as attention gets it, without the softmax scale; rows int64 [G, N, P]: bounds of
    each page of head group g for query row n, -1 where there is none: -inf.
    """
    groups, count, pages = rows.shape
    heads, dim = bounds.shape[2], bounds.shape[-1]
    held = bounds[rows.clamp(min=0), layer].to(torch.float32)  # [G, N, P, h, 2, D]
    held = held.permute(4, 0, 1, 3, 5, 2)  # [2, G, N, h, D, P]
    query = q.to(torch.float32).view(count, groups, heads, -1, dim).transpose(0, 1)
    if len(held) == 1:
        scores = query @ held[0] * dim**-0.5  # [G, N, h, share, P]
        scores.masked_fill_((rows < 0)[:, :, None, None], float("-inf"))
        share = torch.softmax(scores, -1).nan_to_num_(0.0)
        return share.amax((2, 3)).masked_fill_(rows < 0, float("-inf"))
    upper = query.clamp(min=0) @ held[1] + query.clamp(max=0) @ held[0]  # [G, N, h, share, P]
    return upper.amax((2, 3)).masked_fill_(rows < 0, float("-inf"))


def outlier_pages(
    cosines: Tensor, layer: int, rows: Tensor, count: int, first: Tensor | None = None
) -> Tensor:
    """The `count` pages with the least cosine of a key to the page's mean, bool [G, N, P].

    cosines as `update_bounds` makes them, of which the worst head counts; rows int64 [G, N, P] as
    for `score_pages`: -1 is never one. Of equal ones the first. `first` bool alike: pages that come
    before all others.
    """
    worst = cosines[rows.clamp(min=0), layer].amin(-1)
    if first is not None:
        worst = worst - 4.0 * first  # cosines lie within 2 of one another
    worst = worst.masked_fill_(rows < 0, float("inf"))
    order = torch.sort(worst, dim=-1, stable=True).indices[..., :count]
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(-1, order, True) & (rows >= 0)


def select_pages(
    scores: Tensor, last: Tensor, counts: Tensor, num_first: int, most: int | None = None
) -> Tensor:
    """The pages each query reads, int64 [G, N, K] ascending, -1 behind them; K = counts.max().

    `most` is that K where the host knows it, and then nothing waits for the device.

    scores fp32 [G, N, P]; last int64 [G, N]: a query's newest page, behind which it sees nothing;
    counts int64 [G, N]: pages to read, at most last + 1. The newest page and the first `num_first`
    are always among them, then the largest scores, and of equal ones the first.
    """
    pages = torch.arange(scores.shape[-1], device=scores.device)
    key = scores.masked_fill(pages >= last[..., None], float("-inf"))
    key.masked_fill_((pages < num_first) & (pages <= last[..., None]), float("inf"))
    key.scatter_(-1, last[..., None], float("inf"))
    most = int(counts.max()) if most is None else most
    order = torch.sort(key, dim=-1, descending=True, stable=True).indices[..., :most]
    ranks = torch.arange(most, device=scores.device)
    none = scores.shape[-1]
    chosen = order.masked_fill(ranks >= counts[..., None], none).sort(-1).values
    return chosen.masked_fill_(chosen == none, -1)
