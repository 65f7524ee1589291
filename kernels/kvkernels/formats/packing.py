"""Codes below 8 bits to bytes and back.

A field of w bits (1, 2 or 4) of a vector of D codes takes D * w / 8 bytes: byte i holds the codes
i, i + n, i + 2n, ... (n = D * w / 8), the first in the lowest bits. Whole stretches of a vector so
share a shift. Codes of 3 bits are a field of their low two bits followed by one of their high bit.
"""

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack uint8 codes [..., D] below 2**bits (2, 3 or 4) into uint8 [..., D * bits / 8]."""
    if bits == 3:
        return torch.cat([_pack_field(codes & 3, 2), _pack_field(codes >> 2, 1)], -1)
    return _pack_field(codes, bits)


def unpack(data: Tensor, bits: int) -> Tensor:
    """Undo `pack`: uint8 [..., D * bits / 8] to uint8 codes [..., D]."""
    if bits == 3:
        low = data.shape[-1] // 3 * 2
        high = data[..., low:].contiguous()  # strided rows of a few bytes would be read slowly
        codes = _unpack_field(data[..., :low].contiguous(), 2)
        return codes.add_(_unpack_field(high, 1), alpha=4)
    return _unpack_field(data, bits)


def _pack_field(codes: Tensor, width: int) -> Tensor:
    first, *others = codes.unflatten(-1, (8 // width, -1)).unbind(-2)
    packed = first.clone()
    for number, part in enumerate(others, 1):
        packed |= part * (1 << number * width)
    return packed


def _unpack_field(data: Tensor, width: int) -> Tensor:
    mask = (1 << width) - 1
    return torch.cat([data >> shift & mask for shift in range(0, 8, width)], -1)
