"""Whole pages in torch: copy, gather to and scatter from staging buffers, recode."""

import torch
from torch import Tensor

from kvkernels.api import FormatState, Scratch
from kvkernels.layout import META_BYTES, PageSpec

UNIT = 64  # page offsets are multiples of it
RECODE_BATCH = 32  # pages decoded at once; bounds the fp32 scratch


def page_rows(arena: Tensor, page_bytes: int) -> Tensor:
    """View a uint8 arena as int64 [positions, page_bytes / 8]; row i starts at byte 64 * i."""
    words = arena.view(torch.int64)
    count = (arena.numel() - page_bytes) // UNIT + 1
    return words.as_strided((count, page_bytes // 8), (UNIT // 8, 1))


def copy_pages(arena: Tensor, spec: PageSpec, src_offsets: Tensor, dst_offsets: Tensor) -> None:
    """Copy pages inside the arena; offsets int64 [n] in bytes, sources and targets disjoint."""
    rows = page_rows(arena, spec.page_bytes)
    rows.index_copy_(0, dst_offsets // UNIT, rows.index_select(0, src_offsets // UNIT))


def gather_pages(arena: Tensor, spec: PageSpec, offsets: Tensor, out: Tensor) -> Tensor:
    """Copy pages at int64 byte offsets [n] into out uint8 [n, page_bytes]; returns out."""
    rows = page_rows(arena, spec.page_bytes)
    torch.index_select(rows, 0, offsets // UNIT, out=out.view(torch.int64))
    return out


def scatter_pages(arena: Tensor, spec: PageSpec, offsets: Tensor, src: Tensor) -> None:
    """Copy src uint8 [n, page_bytes] to the pages at int64 byte offsets [n]."""
    page_rows(arena, spec.page_bytes).index_copy_(0, offsets // UNIT, src.view(torch.int64))


def plane_view(pages: Tensor, spec: PageSpec, plane: str) -> tuple[Tensor, Tensor | None]:
    """View one plane of pages uint8 [n, page_bytes].

    Returns data uint8 [n, L, H, S, row] and metadata fp16 [n, L, H, M, S] or None.
    """
    key = plane == "k"
    kinds = spec.k_num_meta if key else spec.v_num_meta
    row = spec.k_row_bytes if key else spec.v_row_bytes
    heads, slots = spec.num_kv_heads, spec.block_size
    layers = pages.view(pages.shape[0], spec.num_layers, spec.layer_bytes)
    start = 0 if key else spec.v_offset
    data = layers[:, :, start : start + heads * slots * row].unflatten(-1, (heads, slots, row))
    if not kinds:
        return data, None
    start = spec.k_meta_offset if key else spec.v_meta_offset
    size = heads * kinds * slots * META_BYTES
    meta = layers[:, :, start : start + size].view(torch.float16)
    return data, meta.unflatten(-1, (heads, kinds, slots))


def copy_plane(
    pages: Tensor, spec: PageSpec, plane: str, target: Tensor, target_spec: PageSpec
) -> None:
    """Copy one plane of pages uint8 [n, page_bytes] into pages of a class with other planes."""
    pairs = zip(plane_view(pages, spec, plane), plane_view(target, target_spec, plane), strict=True)
    for source, place in pairs:
        if source is not None and place is not None:
            place.copy_(source)


def decode_pages(pages: Tensor, spec: PageSpec, plane: str, state: FormatState) -> Tensor:
    """Decode one plane of pages uint8 [n, page_bytes] to fp32 [n, L, H, S, D]."""
    data, meta = plane_view(pages, spec, plane)
    fmt = spec.k if plane == "k" else spec.v
    turned = None if meta is None else meta.permute(3, 0, 1, 2, 4)
    return fmt.decode(data, turned, state.page_scale(spec, plane))


def encode_pages(
    pages: Tensor, spec: PageSpec, plane: str, state: FormatState, values: Tensor
) -> None:
    """Encode fp32 values [n, L, H, S, D] into one plane of pages uint8 [n, page_bytes]."""
    data, meta = plane_view(pages, spec, plane)
    fmt = spec.k if plane == "k" else spec.v
    counter = state.saturated if fmt.shared else None
    code = fmt.encode(values, state.page_scale(spec, plane), counter)
    data.copy_(code.data)
    if meta is not None and code.meta is not None:
        meta.copy_(code.meta.permute(1, 2, 3, 0, 4))


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
    """Re-encode pages from one format to another, in batches through counted scratch.

    Offsets are int64 [n] in bytes; `src_offsets` point into `source` (uint8, for example a host
    tier) when it is given, else into the arena. `num_slots` int [n]: written slots of each page;
    the rest becomes zero and is not counted as saturated. Source and target pages are disjoint.
    Raises ValueError when the two specs differ in more than their formats, and when a page that is
    not full goes to a format that groups the tokens of a page.
    """
    check_recode(src_spec, dst_spec)
    if num_slots is not None:
        check_full(dst_spec, num_slots)
    origin = arena if source is None else source
    for start in range(0, src_offsets.numel(), RECODE_BATCH):
        part = slice(start, start + RECODE_BATCH)
        count = src_offsets[part].numel()
        old = scratch.get("recode.src", (count, src_spec.page_bytes), torch.uint8)
        if origin.device == old.device:
            gather_pages(origin, src_spec, src_offsets[part], old)
        else:
            rows = page_rows(origin, src_spec.page_bytes)
            picked = rows.index_select(0, src_offsets[part].to(origin.device) // UNIT)
            old.view(torch.int64).copy_(picked)
        new = scratch.get("recode.dst", (count, dst_spec.page_bytes), torch.uint8).zero_()
        live = (
            None if num_slots is None else _live(num_slots[part], src_spec.block_size, old.device)
        )
        for plane in ("k", "v"):
            values = decode_pages(old, src_spec, plane, src_state)
            if live is not None:
                values = torch.where(live, values, 0.0)
            encode_pages(new, dst_spec, plane, dst_state, values.nan_to_num_(0.0, 0.0, 0.0))
        scatter_pages(arena, dst_spec, dst_offsets[part], new)


def refuse_grouped(spec: PageSpec) -> None:
    """Raise ValueError where single tokens cannot be written, naming the plane."""
    for plane, name, fmt in (
        ("k_format", spec.k_format, spec.k),
        ("v_format", spec.v_format, spec.v),
    ):
        if fmt.grouped:
            raise ValueError(
                f"{plane} = {name} groups the tokens of a page: write them into a page of another "
                "format (bf16) and recode the page when it is full"
            )


def check_recode(src: PageSpec, dst: PageSpec) -> None:
    """Raise ValueError unless the two page classes differ in their formats only."""
    for name in ("num_layers", "num_kv_heads", "head_dim", "block_size", "planes"):
        if getattr(src, name) != getattr(dst, name):
            raise ValueError(
                f"recode from {src} to {dst}: {name} differs, but only the formats may"
            )


def check_full(spec: PageSpec, num_slots: Tensor) -> None:
    """Raise ValueError where a partly written page would go to a format grouped along tokens."""
    if not (spec.k.grouped or spec.v.grouped):
        return
    partial = (num_slots > 0) & (num_slots < spec.block_size)
    if bool(partial.any()):
        count = int(num_slots[partial][0])
        raise ValueError(
            f"a page with {count} of {spec.block_size} slots cannot become {spec.label}, which "
            "groups the tokens of a page: keep it in its format until it is full"
        )


def _live(num_slots: Tensor, block_size: int, device: torch.device) -> Tensor:
    slots = torch.arange(block_size, device=device)
    return (slots < num_slots.to(device)[:, None])[:, None, None, :, None]  # [n, 1, 1, S, 1]
