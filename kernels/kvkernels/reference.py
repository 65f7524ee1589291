"""The torch backend: every operation of the package, fast enough to be the CPU product path."""

from torch import Tensor

from kvkernels.api import FormatState
from kvkernels.attention import attend, chunk_view, merge
from kvkernels.codec import encode
from kvkernels.layout import FORMATS
from kvkernels.pages import copy_pages, gather_pages, recode_pages, scatter_pages
from kvkernels.plan import DTYPES, Plan, make_plan

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
    planes = (
        (k, spec.k_format, index.k_data, index.k_meta, state.k_scale),
        (v, spec.v_format, index.v_data, index.v_meta, state.v_scale),
    )
    start = layer * spec.layer_bytes
    for values, fmt, data_at, meta_at, scale in planes:
        rows = values.reshape(-1, spec.head_dim)
        if index.picks is not None:
            rows = rows.index_select(0, index.picks)
        dtype = DTYPES[fmt]
        if dtype.is_floating_point:
            coded = rows if rows.dtype == dtype else rows.to(dtype)
            chunk_view(arena, dtype, start, spec.head_dim).index_copy_(0, data_at, coded)
            continue
        shared = FORMATS[fmt].shared_scale
        code = encode(fmt, rows, scale[layer], state.saturated if shared else None)
        width = code.data.shape[-1]
        chunk_view(arena, dtype, start, width).index_copy_(0, data_at, code.data.view(dtype))
        if meta_at is not None and code.meta is not None:
            target = chunk_view(arena, code.meta.dtype, start, 1)
            target.index_copy_(0, meta_at, code.meta.reshape(-1, 1))
