"""Integers with a scale per token and head, or per token and group of channels.

int8: symmetric, scale = max|x| / 127 in fp16. int4 and int3: x = code * scale + minimum, scale =
(max - min) / levels, both fp16, per token and head. int2: the same per token and group of up to 32
channels (`gcd(32, D)`, so that groups divide every width).
"""

from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from kvkernels import small_codec
from kvkernels.formats.base import FP16_MAX, TINY, Encoded, PageFormat, Reads, affine
from kvkernels.formats.packing import pack, unpack


def _is_small(x: Tensor) -> bool:
    """Whether numpy encodes these vectors faster than torch."""
    return x.dim() == 2 and x.numel() <= small_codec.MAX_ELEMENTS and x.device.type == "cpu"


@dataclass(frozen=True)
class Symmetric(PageFormat):
    """int8, symmetric."""

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Round to -127..127 times a scale per vector."""
        x = x.to(torch.float32)
        if _is_small(x):
            return Encoded(*small_codec.encode_int8(x))
        own = x.abs().amax(-1, keepdim=True)  # [..., 1]; vector_norm is 15 times slower
        own = own.mul_(1 / 127).clamp_(TINY, FP16_MAX).to(torch.float16)
        codes = (x / own).round_().clamp_(-127, 127).to(torch.int8)
        return Encoded(codes.view(torch.uint8), own[None, ..., 0])

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Code times scale."""
        wide = self.needed(meta)[0].to(torch.float32)[..., None]
        return data.view(torch.int8).to(torch.float32) * wide


@dataclass(frozen=True)
class Uniform(PageFormat):
    """Asymmetric per token and head, 3 or 4 bits."""

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Round to 0..2**bits - 1 between a vector's minimum and maximum."""
        x = x.to(torch.float32)
        if self.bits == 4 and _is_small(x):
            return Encoded(*small_codec.encode_int4(x.contiguous()))
        codes, own, low = affine(x, 2**self.bits - 1)
        return Encoded(pack(codes, self.bits), torch.stack([own[..., 0], low[..., 0]]))

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Code times scale plus minimum."""
        wide = self.needed(meta).to(torch.float32)[..., None]  # [2, ..., 1]
        codes = unpack(data, self.bits).to(torch.float32)
        return torch.addcmul(wide[1], codes, wide[0], out=codes)  # one pass, contiguous as codes


@dataclass(frozen=True)
class ChannelGroups(PageFormat):
    """Asymmetric per token and group of channels; metadata is all scales, then all minima.

    `regroups`: users may choose the group, which then has to divide the vector.
    """

    reads: Reads = "tile"
    group: int = 32
    regroups: bool = False
    chosen: bool = False

    def regrouped(self, group: int) -> PageFormat:
        """The format with that many channels a group, where they are open to choice."""
        return replace(self, group=group, chosen=True) if self.regroups and group else self

    def check(self, head_dim: int, block_size: int) -> None:
        """Raise ValueError where a page of this shape cannot hold the format."""
        super().check(head_dim, block_size)
        if self.chosen and head_dim % self.group:
            raise ValueError(
                f"a group of {self.group} channels does not divide head_dim {head_dim}"
            )

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """Scale and minimum of each group."""
        return 2 * (head_dim // gcd(self.group, head_dim))

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Round to 0..2**bits - 1 between a group's minimum and maximum."""
        parts = x.to(torch.float32).unflatten(-1, (-1, gcd(self.group, x.shape[-1])))
        codes, own, low = affine(parts, 2**self.bits - 1)
        meta = torch.cat([own[..., 0], low[..., 0]], -1)  # [..., M]
        return Encoded(pack(codes.flatten(-2), self.bits), meta.movedim(-1, 0))

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Code times its group's scale plus its minimum."""
        wide = self.needed(meta).to(torch.float32).movedim(0, -1)[..., None]  # [..., M, 1]
        own, low = wide.chunk(2, -2)
        codes = unpack(data, self.bits).to(torch.float32).unflatten(-1, (own.shape[-2], -1))
        return torch.addcmul(low, codes, own, out=codes).flatten(-2)


INT8 = Symmetric("int8", 8, torch.int8, num_scales=1)
INT4 = Uniform("int4", 4, num_scales=2)
INT3 = Uniform("int3", 3, num_scales=2, reads="tile")
INT2 = ChannelGroups("int2", 2)
