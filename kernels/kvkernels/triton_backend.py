"""The Triton backend: the operations of `reference` with the same signatures, for cuda."""

import torch
import triton
from torch import Tensor

from kvkernels.api import FormatState, Scratch
from kvkernels.common import merge
from kvkernels.layout import PageSpec
from kvkernels.pages import RECODE_BATCH, check_full, check_recode, refuse_grouped
from kvkernels.triton_attend import attend
from kvkernels.triton_formats import check_twins, page_of, plane_of, shared_scale, table_of
from kvkernels.triton_pages import move_kernel, recode_kernel, write_kernel
from kvkernels.triton_plan import Plan, make_plan

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

MOVE_BLOCK = 1024  # words of a page one program moves
MOST_REGISTERS = 255  # said aloud, see `triton_attend.most_registers`


def write_kv(
    arena: Tensor, plan: Plan, layer: int, k: Tensor, v: Tensor, state: FormatState
) -> None:
    """Encode and store the new K and V [N, Hkv, D] of a step in one layer; see `reference`."""
    spec, count = plan.spec, plan.write_pages.numel()
    if not count:
        return
    refuse_grouped(spec)
    scales = [shared_scale(spec, state, plane) for plane in ("k", "v")]
    write_kernel[(count,)](
        k.contiguous(),
        v.contiguous(),
        arena.view(spec.k.dtype),
        arena.view(spec.v.dtype),
        arena.view(torch.float16),
        *(table_of(spec, plane, state, plan.num_head_groups) for plane in ("k", "v")),
        plan.write_pages,
        plan.write_slots,
        plan.write_tokens,
        scales[0][0],
        scales[1][0],
        state.saturated,
        layer,
        plan.num_head_groups,
        scales[0][1],
        scales[1][1],
        K=plane_of(spec, "k"),
        V=plane_of(spec, "v"),
        PAGE=page_of(spec),
        BLOCK_H=triton.next_power_of_2(spec.num_kv_heads),
        num_warps=write_warps(spec),
        maxnreg=MOST_REGISTERS,
    )


def write_warps(spec: PageSpec) -> int:
    """Warps of the write kernel: one program holds a token's heads in registers."""
    numbers = triton.next_power_of_2(spec.num_kv_heads) * spec.head_dim
    return max(1, min(8, numbers // 512))


def _move(
    src: Tensor, dst: Tensor, src_offsets: Tensor, dst_offsets: Tensor, page_bytes: int
) -> None:
    words = page_bytes // 8
    grid = (src_offsets.numel(), triton.cdiv(words, MOVE_BLOCK))
    if grid[0]:
        at = (src_offsets // 8, dst_offsets // 8)
        move_kernel[grid](
            src.view(torch.int64), dst.view(torch.int64), *at, words, BLOCK=MOVE_BLOCK
        )


def _rows_at(pages: Tensor) -> Tensor:
    """Byte offset of each row of a contiguous uint8 [n, page_bytes]."""
    return torch.arange(pages.shape[0], device=pages.device) * pages.shape[1]


def copy_pages(arena: Tensor, spec: PageSpec, src_offsets: Tensor, dst_offsets: Tensor) -> None:
    """Copy pages inside the arena; offsets int64 [n] in bytes, sources and targets disjoint."""
    _move(arena, arena, src_offsets, dst_offsets, spec.page_bytes)


def gather_pages(arena: Tensor, spec: PageSpec, offsets: Tensor, out: Tensor) -> Tensor:
    """Copy pages at int64 byte offsets [n] into out uint8 [n, page_bytes]; returns out."""
    _move(arena, out, offsets, _rows_at(out), spec.page_bytes)
    return out


def scatter_pages(arena: Tensor, spec: PageSpec, offsets: Tensor, src: Tensor) -> None:
    """Copy src uint8 [n, page_bytes] to the pages at int64 byte offsets [n]."""
    _move(src, arena, _rows_at(src), offsets, spec.page_bytes)


def recode_pages(
    arena: Tensor,
    src_spec: PageSpec,
    src_offsets: Tensor,
    src_state: FormatState,
    dst_spec: PageSpec,
    dst_offsets: Tensor,
    dst_state: FormatState,
    scratch: Scratch,
    *,
    source: Tensor | None = None,
    num_slots: Tensor | None = None,
) -> None:
    """Re-encode pages from one format to another; see `pages.recode_pages`.

    Pages of a `source` on another device come through counted scratch in batches.
    """
    check_recode(src_spec, dst_spec)
    check_twins(src_spec)
    check_twins(dst_spec)
    if num_slots is None:
        num_slots = torch.full_like(src_offsets, src_spec.block_size)
    else:
        check_full(dst_spec, num_slots)
    num_slots = num_slots.to(arena.device, torch.int32)
    dst_offsets = dst_offsets.to(arena.device)
    for start in range(0, src_offsets.numel(), RECODE_BATCH):
        part = slice(start, start + RECODE_BATCH)
        origin, offsets = arena if source is None else source, src_offsets[part]
        if origin.device != arena.device:
            shape = (offsets.numel(), src_spec.page_bytes)
            staged = scratch.get("recode.src", shape, torch.uint8)
            for row, offset in zip(staged, offsets.tolist(), strict=True):
                row.copy_(origin[offset : offset + src_spec.page_bytes], non_blocking=True)
            origin, offsets = staged.view(-1), _rows_at(staged)
        for plane in ("k", "v"):
            _recode_plane(
                plane,
                origin,
                arena,
                src_spec,
                dst_spec,
                offsets.to(arena.device),
                dst_offsets[part],
                num_slots[part],
                src_state,
                dst_state,
            )


def _recode_plane(
    plane: str,
    origin: Tensor,
    arena: Tensor,
    src_spec: PageSpec,
    dst_spec: PageSpec,
    src_offsets: Tensor,
    dst_offsets: Tensor,
    num_slots: Tensor,
    src_state: FormatState,
    dst_state: FormatState,
) -> None:
    src, dst = (spec.k if plane == "k" else spec.v for spec in (src_spec, dst_spec))
    src_scale, src_width = shared_scale(src_spec, src_state, plane)
    dst_scale, dst_width = shared_scale(dst_spec, dst_state, plane)
    recode_kernel[(src_offsets.numel(), src_spec.num_layers * src_spec.num_kv_heads)](
        origin.view(src.dtype),
        origin.view(torch.float16),
        table_of(src_spec, plane, src_state),
        arena.view(dst.dtype),
        arena.view(torch.float16),
        table_of(dst_spec, plane, dst_state),
        src_offsets,
        dst_offsets,
        num_slots,
        src_scale,
        dst_scale,
        dst_state.saturated,
        src_width,
        dst_width,
        SRC=plane_of(src_spec, plane),
        SRC_PAGE=page_of(src_spec),
        DST=plane_of(dst_spec, plane),
        DST_PAGE=page_of(dst_spec),
        BLOCK_S=triton.next_power_of_2(src_spec.block_size),
        num_warps=2,
        maxnreg=MOST_REGISTERS,
    )
