"""What the Triton kernels know of a page class at compile time, and which they can read."""

from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from kvkernels.api import FormatState, Rope
from kvkernels.formats import PageFormat
from kvkernels.formats.fp8 import Fp8
from kvkernels.formats.integer import ChannelGroups, Symmetric, Uniform
from kvkernels.formats.kivi import TokenGroups
from kvkernels.formats.kvquant import NuqChannels, NuqTokens
from kvkernels.formats.low_rank import LowRank
from kvkernels.formats.nvfp4 import Nvfp4
from kvkernels.formats.turbo import LloydMax, codebook
from kvkernels.layout import PageSpec

MIN_TOKEN_GROUP = 16  # a tile of keys is one group, and a product needs 16 of them


class Page(NamedTuple):
    """Shape of a page class; `log_half` is log2 of half a head vector."""

    slots: int
    heads: int
    half: int
    log_half: int
    layer_bytes: int


class Plane(NamedTuple):
    """One plane of a page class.

    family: how codes are laid and scaled: float, e4m3, e5m2, int8, uint, channels, tokens, lloyd,
        nvfp4, nuq_k, nuq_v, low_rank. packed: codes share bytes (two or more a byte).
    fold: numbers per token that fold around a product: 0, 1 (scale), 2 (and minimum) or 4 (both
        for each half of the vector). group: channels or tokens that share metadata.
    item: bytes of an element of the data pointer. row: elements of a vector; align: elements that
    divide every row's place. start, meta: byte offsets in a layer; kinds: M. shared: 0, 1 (a scale
    a layer), 2 (a scale a layer and head). factor: value of one unit of a code. table: numbers of a
    layer and head outside the pages. rank, joined: coordinates of low rank, of so many heads.
    columns: a power of two not below half of what a head holds of them.
    """

    family: str
    bits: int
    packed: bool
    fold: int
    group: int
    item: int
    row: int
    align: int
    start: int
    meta: int
    kinds: int
    shared: int
    factor: float
    rotated: bool
    table: int
    rank: int
    joined: int
    columns: int


def page_of(spec: PageSpec) -> Page:
    """Shape constants of a page class."""
    half = spec.head_dim // 2
    return Page(spec.block_size, spec.num_kv_heads, half, half.bit_length() - 1, spec.layer_bytes)


def plane_of(spec: PageSpec, plane: str) -> Plane:
    """Constants of one plane of a page class."""
    key = plane == "k"
    fmt, row = (spec.k, spec.k_row_bytes) if key else (spec.v, spec.v_row_bytes)
    item = fmt.dtype.itemsize
    group = _group(fmt, spec)
    fold = fmt.num_scales + isinstance(fmt, LloydMax)
    rank, joined = (fmt.rank_of(spec.head_dim), fmt.heads) if isinstance(fmt, LowRank) else (0, 1)
    if isinstance(fmt, ChannelGroups) and group * 2 >= spec.head_dim:
        fold = 4 if group * 2 == spec.head_dim else 2
    return Plane(
        family=_family(fmt, spec),
        bits=fmt.bits,
        packed=fmt.bits < 8,
        fold=fold,
        group=group,
        item=item,
        row=row // item,
        align=gcd(row, 16) // item,
        start=0 if key else spec.v_offset,
        meta=spec.k_meta_offset if key else spec.v_meta_offset,
        kinds=spec.k_num_meta if key else spec.v_num_meta,
        shared={"tensor": 1, "head": 2}.get(fmt.shared or "", 0),
        factor=fmt.code_factor,
        rotated=fmt.rotated,
        table=fmt.table_size(spec.head_dim),
        rank=rank,
        joined=joined,
        columns=1 << (max(1, rank // joined // 2) - 1).bit_length(),
    )


def _family(fmt: PageFormat, spec: PageSpec) -> str:
    if isinstance(fmt, ChannelGroups) and _group(fmt, spec) == spec.head_dim:
        return "uint"  # one group is the whole vector
    if isinstance(fmt, Fp8):
        return "e5m2" if fmt.kind == torch.float8_e5m2 else "e4m3"
    families: tuple[tuple[type, str], ...] = (
        (Symmetric, "int8"), (Uniform, "uint"), (ChannelGroups, "channels"),
        (TokenGroups, "tokens"), (LloydMax, "lloyd"), (Nvfp4, "nvfp4"),
        (NuqChannels, "nuq_k"), (NuqTokens, "nuq_v"), (LowRank, "low_rank"),
    )  # fmt: skip
    return next((name for kind, name in families if isinstance(fmt, kind)), "float")


def _group(fmt: PageFormat, spec: PageSpec) -> int:
    if isinstance(fmt, TokenGroups):
        return fmt.group_of(spec.block_size)
    if isinstance(fmt, Nvfp4):
        return gcd(16, spec.head_dim)
    return gcd(fmt.group, spec.head_dim) if isinstance(fmt, ChannelGroups) else spec.head_dim


def shared_scale(spec: PageSpec, state: FormatState, plane: str) -> tuple[Tensor, int]:
    """The fp32 scales a kernel reads, [num_layers, width], and their width."""
    if (spec.k if plane == "k" else spec.v).shared == "head":
        scale = state.k_head_scale if plane == "k" else state.v_head_scale
        return scale.contiguous(), scale.shape[1]
    return (state.k_scale if plane == "k" else state.v_scale), 1


def table_of(spec: PageSpec, plane: str, state: FormatState, num_head_groups: int = 1) -> Tensor:
    """A plane's codebook (fp32 [2**bits]) or calibration table; any tensor where it has none.

    Raises ValueError where the table is of other heads than the groups have.
    """
    fmt = spec.k if plane == "k" else spec.v
    if fmt.shared == "table":
        table = state.k_table if plane == "k" else state.v_table
        heads = num_head_groups * spec.num_kv_heads
        if table.shape[1] != heads:
            raise ValueError(
                f"{plane}_table has {table.shape[1]} heads, but this step covers {heads}"
            )
        return table.contiguous()
    return codebook(fmt.bits if isinstance(fmt, LloydMax) else 3, state.k_scale.device)


def check_twins(spec: PageSpec, rope: Rope = "stored") -> None:
    """Raise ValueError for a page class that the Triton kernels cannot read, naming the plane."""
    for plane, name, fmt in (
        ("k_format", spec.k_format, spec.k),
        ("v_format", spec.v_format, spec.v),
    ):
        where = f"{plane} = {name} has no Triton kernel"
        least = 64 if fmt.bits < 8 else 32
        if spec.head_dim & (spec.head_dim - 1) or spec.head_dim < least:
            raise ValueError(
                f"{where} for head_dim {spec.head_dim}: it must be a power of two from {least} on"
            )
        if isinstance(fmt, TokenGroups) and fmt.group_of(spec.block_size) < MIN_TOKEN_GROUP:
            raise ValueError(
                f"{where} for block_size {spec.block_size} in groups of "
                f"{fmt.group_of(spec.block_size)} tokens: choose a multiple of {MIN_TOKEN_GROUP}"
            )
