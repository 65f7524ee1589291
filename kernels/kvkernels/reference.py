"""The torch backend: every operation of the package, fast enough to be the CPU product path."""

import torch
from torch import Tensor

from kvkernels.api import FormatState
from kvkernels.attention import attend
from kvkernels.common import merge
from kvkernels.pages import (
    copy_pages,
    gather_pages,
    recode_pages,
    refuse_grouped,
    scatter_pages,
)
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
    Raises ValueError for a format whose pages are only written whole.
    """
    index, spec = plan.write, plan.spec
    if index is None:
        return
    refuse_grouped(spec)
    joined = len(index.data) == 1
    planes = [torch.cat((k, v))] if joined else [k, v]
    scales = _shared_scales(plan, layer, state, joined)
    start = layer * spec.layer_bytes
    for number, plane in enumerate(planes):
        values = plane.reshape(-1, spec.head_dim)
        if index.picks is not None:
            values = values.index_select(0, index.picks)
        fmt = spec.k if number == 0 else spec.v
        dtype = fmt.dtype
        width = fmt.row_bytes(spec.head_dim) // dtype.itemsize
        target = plan.scratch.chunks(arena, dtype, start, width)
        if values.dtype == dtype:
            target.index_copy_(0, index.data[number], values)
            continue
        if fmt.shared == "table":
            values = values.unflatten(0, (-1, plane.shape[1]))  # [n, Hkv, D], as the tables
        code = fmt.encode(values, scales[number], state.saturated)
        target.index_copy_(0, index.data[number], code.data.view(dtype).view(-1, width))
        meta_at = index.meta[number]
        if meta_at is not None and code.meta is not None:
            single = plan.scratch.chunks(arena, torch.float16, start, 1)
            single.index_copy_(0, meta_at, code.meta.reshape(-1, 1))


def _shared_scales(
    plan: Plan, layer: int, state: FormatState, joined: bool
) -> list[Tensor | float]:
    """The shared scale of each encode: numbers, or one a row, K and V together if `joined`."""
    spec = plan.spec
    kinds = (spec.k.shared, spec.v.shared)
    if kinds == (None, None):
        return [1.0, 1.0]
    assert plan.write is not None
    scales: list[Tensor | float] = [1.0, 1.0]
    if "table" in kinds:
        heads = plan.num_head_groups * spec.num_kv_heads
        for number, (plane, kind) in enumerate(zip(("k", "v"), kinds, strict=True)):
            if kind == "table":
                scales[number] = state.head_table(plane, layer, heads)
    if "tensor" in kinds:
        numbers = plan.shared_scales(state)
        for number, kind in enumerate(kinds):
            if kind == "tensor":
                scales[number] = numbers[number][layer]
    if "head" in kinds:
        heads = plan.num_head_groups * spec.num_kv_heads
        for number, (plane, kind) in enumerate(zip(("k", "v"), kinds, strict=True)):
            if kind == "head":
                scale = state.head_scale(plane, layer, heads)
                tokens = plan.write.data[number * (not joined)].numel() // heads // (1 + joined)
                scales[number] = scale.repeat(tokens)[:, None]  # [tokens * heads, 1]
        return [torch.cat([x for x in scales if isinstance(x, Tensor)])] if joined else scales
    if not joined or scales[0] == scales[1]:
        return scales
    each = plan.write.data[0].numel() // 2
    return [torch.tensor(scales).repeat_interleave(each)[:, None]]
