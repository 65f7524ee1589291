"""The torch backend: every operation of the package, fast enough to be the CPU product path."""

import torch
from torch import Tensor

from kvkernels.api import FormatState
from kvkernels.attention import attend
from kvkernels.codec import DTYPES, encode
from kvkernels.common import merge
from kvkernels.layout import FORMATS
from kvkernels.pages import copy_pages, gather_pages, recode_pages, scatter_pages
from kvkernels.plan import Plan, make_plan

__all__ = [
    "attend",
    "copy_pages",
    "gather_pages",
    "make_plan",
    "merge",
    "recode_pages",
    "scatter_pages",
    "write_kv",
]


def write_kv(
    arena: Tensor, plan: Plan, layer: int, k: Tensor, v: Tensor, state: FormatState
) -> None:
    """Encode and store the new K and V [N, Hkv, D] of a step in one layer.

    They become the last `new_lens[r]` slots of each request; `layer` counts inside the group.
    """
    index, spec = plan.write, plan.spec
    if index is None:
        return
    rows = [x.reshape(-1, spec.head_dim) for x in (k, v)]
    if index.picks is not None:
        rows = [x.index_select(0, index.picks) for x in rows]
    if len(index.data) == 1:
        rows = [torch.cat(rows)]
    scales = _shared_scales(plan, layer, state, rows)
    start = layer * spec.layer_bytes
    for number, values in enumerate(rows):
        fmt = spec.k_format if number == 0 else spec.v_format
        code = encode(fmt, values, scales[number], state.saturated)
        dtype = DTYPES[fmt]
        width = spec.head_dim * FORMATS[fmt].bits // 8 // dtype.itemsize
        target = plan.scratch.chunks(arena, dtype, start, width)
        target.index_copy_(0, index.data[number], code.data.view(dtype))
        meta_at = index.meta[number]
        if meta_at is not None and code.meta is not None:
            single = plan.scratch.chunks(arena, torch.float16, start, 1)
            single.index_copy_(0, meta_at, code.meta.view(-1, 1))


def _shared_scales(
    plan: Plan, layer: int, state: FormatState, rows: list[Tensor]
) -> list[Tensor | float]:
    """The fp8 scale of each encode: numbers, or one a row where K and V go together."""
    spec = plan.spec
    if not (FORMATS[spec.k_format].shared_scale or FORMATS[spec.v_format].shared_scale):
        return [1.0, 1.0]
    scales: list[Tensor | float] = [float(state.k_scale[layer]), float(state.v_scale[layer])]
    if len(rows) == 2 or scales[0] == scales[1]:
        return scales
    return [torch.tensor(scales).repeat_interleave(rows[0].shape[0] // 2)[:, None]]
