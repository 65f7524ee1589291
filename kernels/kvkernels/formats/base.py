"""What a page format is: the protocol every method implements, and a method's two planes.

A plane's data lies in a page as uint8 [KV heads, S, row bytes], its metadata as 16-bit numbers
[KV heads, M, S]. Codecs take vectors [..., S, D] (formats that treat tokens alone: [..., D]) and
use the same shapes with any leading axes, except that M comes first: data uint8 [..., S, row],
metadata fp16 [M, ..., S].
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kvkernels.formats.rotation import hadamard

FP16_MAX = 65504.0
TINY = 2.0**-24  # smallest fp16 scale above zero: a constant group must not divide by zero

Shared = Literal["tensor", "head", "table"] | None
Reads = Literal["codes", "tile"]


@dataclass(frozen=True)
class Encoded:
    """One encoded plane: `data` uint8 [..., row_bytes], `meta` fp16 [M, ...] or None."""

    data: Tensor
    meta: Tensor | None = None


@dataclass(frozen=True)
class PageFormat:
    """How the K or V vectors of a page are stored and read.

    bits: of a code. dtype: what attention views the row's bytes as.
    shared: fp32 calibration outside the page (`FormatState`): a scale a layer, a scale a layer and
        KV head, or a table of numbers a layer and KV head; `scale` below is then that table.
    pre_rope: keys are stored as projected and rotated as they are read.
    rotated: vectors lie in the Hadamard basis; attention turns q and its result instead of them.
    grouped: numbers of several tokens share metadata, so that a page is only written whole.
    reads: how attention reads a page: `codes` go into products as they are, times a scale and plus
        a minimum per token and head (`num_scales` 0, 1, 2) folded around the product; of a `tile`
        every number is decoded.
    code_factor: the value of one unit of a code as `codes` reads it.
    """

    name: str
    bits: int
    dtype: torch.dtype = torch.uint8
    shared: Shared = None
    pre_rope: bool = False
    rotated: bool = False
    grouped: bool = False
    reads: Reads = "codes"
    num_scales: int = 0
    code_factor: float = 1.0

    @property
    def key(self) -> "PageFormat":
        """The format of a K plane under this name."""
        return self

    @property
    def value(self) -> "PageFormat":
        """The format of a V plane under this name."""
        return self

    def regrouped(self, group: int) -> "PageFormat":
        """The format with groups of that many numbers; itself where the method fixes them."""
        return self

    def ranked(self, rank: int, heads: int = 1) -> "PageFormat":
        """The format with so many coordinates of joined heads; itself where it has no rank."""
        return self

    @property
    def num_parts(self) -> int:
        """Parts of a vector that `codes` reads apart: two nibbles, else one."""
        return 2 if self.bits == 4 else 1

    @property
    def largest(self) -> float:
        """The largest number that a shared scale of 1 can hold."""
        raise NotImplementedError(self.name)

    @property
    def clears_holes(self) -> bool:
        """Whether unwritten bytes can read as NaN, so that attention has to clear them."""
        return self.dtype.is_floating_point

    def table_size(self, head_dim: int) -> int:
        """Numbers of the calibration table of one layer and KV head."""
        return 0

    def neutral_table(self, head_dim: int) -> Tensor:
        """The table, fp32 [table_size] or one a joined head, where nothing was measured."""
        raise NotImplementedError(self.name)

    def table(self, scale: Tensor | float, head_dim: int, device: torch.device) -> Tensor:
        """The given table, or the neutral one for a plain number."""
        return scale if isinstance(scale, Tensor) else self.neutral_table(head_dim).to(device)

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of one token's vector of one head, without metadata."""
        return head_dim * self.bits // 8

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """16-bit numbers of metadata per token and head (M)."""
        return self.num_scales

    def check(self, head_dim: int, block_size: int) -> None:
        """Raise ValueError where a page of this shape cannot hold the format."""
        unit = 8 if self.bits == 3 else max(1, 16 // self.bits)
        if head_dim % unit:
            raise ValueError(f"head_dim {head_dim} does not pack")
        if self.rotated and head_dim & (head_dim - 1):
            raise ValueError(
                f"head_dim {head_dim} is not a power of two, which a Hadamard rotation needs"
            )

    def encode(
        self, x: Tensor, scale: Tensor | float = 1.0, saturated: Tensor | None = None
    ) -> Encoded:
        """Encode vectors x [..., D] of any float dtype.

        `scale`: the shared fp32 scale, broadcast against x; clamped elements are added to
        `saturated` [1] int64.
        """
        return self.pack(hadamard(x.to(torch.float32)) if self.rotated else x, scale, saturated)

    def decode(
        self, data: Tensor, meta: Tensor | None = None, scale: Tensor | float = 1.0
    ) -> Tensor:
        """Decode uint8 [..., row_bytes] (last axis contiguous) to fp32 [..., D]."""
        x = self.unpack(data, meta, scale)
        return hadamard(x) if self.rotated else x

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Encode vectors that lie in the stored basis already."""
        raise NotImplementedError(self.name)

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Decode to fp32 in the stored basis."""
        raise NotImplementedError(self.name)

    def needed(self, meta: Tensor | None) -> Tensor:
        """The metadata; raises ValueError where it is missing."""
        if meta is None:
            raise ValueError(f"format {self.name} needs its metadata to decode")
        return meta


@dataclass(frozen=True)
class Method:
    """A method whose K and V planes differ: `key` and `value` are their formats."""

    name: str
    key: PageFormat
    value: PageFormat

    @property
    def bits(self) -> int:
        """Bits of a K code."""
        return self.key.bits

    def regrouped(self, group: int) -> "Method":
        """The method with groups of that many numbers, where it leaves them open."""
        return replace(self, key=self.key.regrouped(group), value=self.value.regrouped(group))

    def ranked(self, rank: int, heads: int = 1) -> "Method":
        """The method with so many coordinates of joined heads, where it has a rank."""
        return replace(self, key=self.key.ranked(rank, heads), value=self.value.ranked(rank, heads))


def affine(x: Tensor, levels: int, axis: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise fp32 x to 0..levels along `axis`: x = code * scale + minimum.

    Returns codes uint8 like x, scale and minimum fp16 with `axis` kept at size 1.
    """
    low = x.amin(axis, keepdim=True).clamp_(-FP16_MAX, FP16_MAX).to(torch.float16)
    scale = x.amax(axis, keepdim=True).sub_(low).mul_(1 / levels).clamp_(TINY, FP16_MAX)
    scale = scale.to(torch.float16)
    codes = (x - low).div_(scale).round_().clamp_(0, levels)
    return codes.to(torch.int8).view(torch.uint8), scale, low  # torch casts to uint8 more slowly
