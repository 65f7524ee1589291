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
    joined = len(index.data) == 1
    planes = [torch.cat((k, v))] if joined else [k, v]
    scales = _shared_scales(plan, layer, state, joined)
    start = layer * spec.layer_bytes
    for number, plane in enumerate(planes):
        values = plane.reshape(-1, spec.head_dim)
        if index.picks is not None:
            values = values.index_select(0, index.picks)
        fmt = spec.k_format if number == 0 else spec.v_format
        dtype = DTYPES[fmt]
        width = spec.head_dim * FORMATS[fmt].bits // 8 // dtype.itemsize
        target = plan.scratch.chunks(arena, dtype, start, width)
        if values.dtype == dtype:
            target.index_copy_(0, index.data[number], values)
            continue
        code = encode(fmt, values, scales[number], state.saturated)
        target.index_copy_(0, index.data[number], code.data.view(dtype))
        meta_at = index.meta[number]
        if meta_at is not None and code.meta is not None:
            single = plan.scratch.chunks(arena, torch.float16, start, 1)
            single.index_copy_(0, meta_at, code.meta.view(-1, 1))


def _shared_scales(
    plan: Plan, layer: int, state: FormatState, joined: bool
) -> list[Tensor | float]:
    """The fp8 scale of each encode: numbers, or one a row where K and V go together."""
    k_scales, v_scales = plan.shared_scales(state)
    scales: list[Tensor | float] = [k_scales[layer], v_scales[layer]]
    if not joined or scales[0] == scales[1]:
        return scales
    assert plan.write is not None
    each = plan.write.data[0].numel() // 2
    return [torch.tensor(scales).repeat_interleave(each)[:, None]]
