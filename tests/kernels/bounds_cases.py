"""Pages with random keys, their bounds, and selections; shared by the tests of both backends."""

from types import ModuleType

import torch
from kvkernels.api import FormatState
from kvkernels.layout import PageSpec
from kvkernels.pages import decode_pages, encode_pages
from torch import Tensor

from tests.kernels.cases import rope_table

NUM_PAGES = 6


def filled(spec: PageSpec, seed: int = 0) -> tuple[Tensor, Tensor, FormatState]:
    """An arena with NUM_PAGES pages, where they begin, and their calibration."""
    generator = torch.Generator().manual_seed(seed)
    state = FormatState.from_spec(spec)
    pages = torch.zeros(NUM_PAGES, spec.page_bytes, dtype=torch.uint8)
    shape = (NUM_PAGES, spec.num_layers, spec.num_kv_heads, spec.block_size, spec.head_dim)
    for plane in ("k", "v"):
        values = torch.randn(shape, generator=generator) * 3
        encode_pages(pages, spec, plane, state, values)
    return pages.view(-1), torch.arange(NUM_PAGES) * spec.page_bytes, state


def check_bounds(backend: ModuleType, spec: PageSpec, *, rope: bool = False) -> dict[str, float]:
    """How far the bounds are from what the pages hold, in float64; negative margin: no bound."""
    arena, offsets, state = filled(spec)
    bounds = backend.make_bounds(NUM_PAGES + 2, spec, "cpu").zero_()
    rows = torch.tensor([3, 0, 7, 1, 5, 2])
    pos = table = None
    if rope:
        pos = torch.randint(0, 400, (NUM_PAGES, spec.block_size))
        table = rope_table(spec.head_dim)
    for layers in (range(1), range(1, spec.num_layers)):
        backend.update_bounds(arena, spec, offsets, state, bounds, rows, layers=layers, pos=pos,
                              rope_table=table)  # fmt: skip
    pages = arena.view(NUM_PAGES, -1)
    keys = decode_pages(pages, spec, "k", state).double()  # [n, L, H, S, D]
    if rope:
        cos, sin = (t[pos][:, None, None].double() for t in table)
        one, two = keys.chunk(2, -1)
        keys = torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
    low, high = bounds[rows].double().unbind(3)
    slack = 1e-5 if rope or spec.k.rotated else 1e-6  # other orders of additions
    size = keys.abs().amax()
    q = torch.randn(2, 2 * spec.num_kv_heads, spec.head_dim)
    layer = spec.num_layers - 1
    table_rows = torch.stack([rows, rows.flip(0)])[None]  # [G = 1, N = 2, P]
    table_rows[0, 1, 0] = -1
    found = backend.score_pages(q, bounds, layer, table_rows).double()
    wide = q.double().unflatten(1, (spec.num_kv_heads, 2))
    margin = torch.inf
    for n, order in enumerate((torch.arange(NUM_PAGES), torch.arange(NUM_PAGES).flip(0))):
        scores = torch.einsum("hgd,phsd->phgs", wide[n], keys[order, layer]).amax((1, 2, 3))
        real = found[0, n].isfinite()
        assert real.sum() == NUM_PAGES - n
        margin = min(margin, float((found[0, n] - scores)[real].min()))
        upper = (
            torch.maximum(
                wide[n][None] * low[order, layer][:, :, None],
                wide[n][None] * high[order, layer][:, :, None],
            )
            .sum(-1)
            .amax((1, 2))
        )
        torch.testing.assert_close(found[0, n][real], upper[real], rtol=1e-5, atol=1e-4)
    return {
        "below": float((keys.amin(3) - low).min() + slack * size),
        "above": float((high - keys.amax(3)).min() + slack * size),
        "loose": float(torch.maximum(keys.amin(3) - low, high - keys.amax(3)).max() / size),
        "margin": margin + 1e-3,
    }


def by_rule(scores: Tensor, last: Tensor, counts: Tensor, num_first: int) -> Tensor:
    """`select_pages` page by page."""
    chosen = torch.full((*last.shape, int(counts.max())), -1)
    for g, n in torch.cartesian_prod(*map(torch.arange, last.shape)).tolist():
        newest, count = int(last[g, n]), int(counts[g, n])
        forced = [p for p in range(newest) if p < num_first]
        free = sorted(range(len(forced), newest), key=lambda p: (-float(scores[g, n, p]), p))
        picked = sorted((forced + free)[: count - 1] + [newest])
        chosen[g, n, : len(picked)] = torch.tensor(picked)
    return chosen


def selections(seed: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Scores with ties, some missing, and counts of every size."""
    generator = torch.Generator().manual_seed(seed)
    pages = int(torch.randint(1, 40, (1,), generator=generator))
    scores = torch.randint(-4, 5, (2, 3, pages), generator=generator).float() / 2
    last = torch.randint(0, pages, (2, 3), generator=generator)
    first = int(torch.randint(0, 3, (1,), generator=generator))
    least = torch.minimum(last + 1, torch.tensor(first + 1))
    counts = least + ((last + 1 - least) * torch.rand(2, 3, generator=generator)).long()
    return scores, last, counts, first
