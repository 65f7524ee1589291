"""KIVI: keys per channel in groups of tokens, values per token in groups of channels.

K: x = code * scale + minimum, fp16 scale and minimum per channel and group of tokens of the page (S
its slots): a page is one group or a few, and only written whole; tokens wait in pages of another
format until theirs is full. V: per token and group of channels. A group has as many numbers as the
page class says, else `gcd(32, S)` tokens and `gcd(32, D)` channels. The scale has a floor, so that
a constant group does not divide by zero. Keys come after RoPE. Metadata of K lies as
[2, S / group, D]. Source: KIVI (arXiv 2402.02750).
"""

from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from kvkernels.formats.base import Encoded, Method, PageFormat, Reads, affine
from kvkernels.formats.integer import ChannelGroups
from kvkernels.formats.packing import pack, unpack

GROUP = 32


@dataclass(frozen=True)
class TokenGroups(PageFormat):
    """Asymmetric per channel and group of tokens; vectors come as whole pages [..., S, D]."""

    reads: Reads = "tile"
    grouped: bool = True
    group: int = 0  # tokens, chosen; 0: as many of 32 as divide the page

    def regrouped(self, group: int) -> PageFormat:
        """The format with that many tokens a group."""
        return replace(self, group=group)

    def check(self, head_dim: int, block_size: int) -> None:
        """Raise ValueError where a page of this shape cannot hold the format."""
        super().check(head_dim, block_size)
        if self.group and block_size % self.group:
            raise ValueError(
                f"a group of {self.group} tokens does not divide a page of {block_size}"
            )

    def group_of(self, block_size: int) -> int:
        """Tokens of a page that share a channel's scale."""
        return self.group or gcd(GROUP, block_size)

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """Scale and minimum of each channel and group, spread over the group's tokens."""
        return -(-2 * head_dim // self.group_of(block_size))

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Round to 0..2**bits - 1 between a group's minimum and maximum."""
        slots, dim = x.shape[-2:]
        parts = x.to(torch.float32).unflatten(-2, (-1, self.group_of(slots)))  # [..., S / g, g, D]
        codes, own, low = affine(parts, 2**self.bits - 1, -2)
        meta = torch.stack([own, low], -4).flatten(-4)  # [..., 2 * S / g * D]
        kinds = self.num_meta(dim, slots)
        meta = torch.nn.functional.pad(meta, (0, kinds * slots - meta.shape[-1]))
        codes = pack(codes.flatten(-3, -2), self.bits)
        return Encoded(codes, meta.unflatten(-1, (kinds, slots)).movedim(-2, 0))

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Code times its group's scale plus its minimum."""
        slots, group = data.shape[-2], self.group_of(data.shape[-2])
        codes = unpack(data, self.bits).to(torch.float32)
        used = 2 * slots // group * codes.shape[-1]
        wide = self.needed(meta).movedim(0, -2).flatten(-2)[..., :used].to(torch.float32)
        own, low = wide.unflatten(-1, (2, slots // group, 1, -1)).unbind(-4)  # [..., S / g, 1, D]
        codes = codes.unflatten(-2, (-1, group))
        return torch.addcmul(low, codes, own, out=codes).flatten(-3, -2)


def _method(bits: int) -> Method:
    name = f"kivi{bits}"
    value = ChannelGroups(name, bits, group=GROUP, regroups=True)
    return Method(name, TokenGroups(name, bits), value)


KIVI4, KIVI3, KIVI2 = _method(4), _method(3), _method(2)
