"""Numbers to page bytes and back, one plane (K or V) at a time, in torch on any device.

Formats are described in `kvkernels.layout.FORMATS`. Data is uint8 [..., S, row_bytes], metadata
fp16 [..., M, S].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvkernels import small_codec
from kvkernels.layout import FORMATS

FP8_MAX = 448.0
FP16_MAX = 65504.0
# the type a plane's bytes are viewed as; fp8 as int8, so that widening extends the sign
DTYPES = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.int8,
    "int8": torch.int8,
    "int4": torch.uint8,
}
TINY = 2.0**-24  # smallest fp16 scale above zero


@dataclass(frozen=True)
class Encoded:
    """One encoded plane: `data` uint8 [..., row_bytes], `meta` fp16 [M, ...] or None."""

    data: Tensor
    meta: Tensor | None = None


def encode(
    fmt: str, x: Tensor, scale: Tensor | float = 1.0, saturated: Tensor | None = None
) -> Encoded:
    """Encode vectors x [..., D] of any float dtype.

    `scale` is the shared fp32 scale (fp8 only), broadcast against x; clamped elements are added to
    `saturated` [1] int64. Metadata comes first-axis-stacked: fp16 [M, ...].
    """
    if fmt == "bf16":
        return Encoded(x.to(torch.bfloat16).contiguous().view(torch.uint8))
    if fmt == "fp32":
        return Encoded(x.to(torch.float32).contiguous().view(torch.uint8))
    if fmt == "fp8_e4m3":
        return Encoded(_encode_fp8(x.to(torch.float32), scale, saturated))
    if fmt in ("int8", "int4"):
        x = x.to(torch.float32)
        if x.dim() == 2 and x.numel() <= small_codec.MAX_ELEMENTS and x.device.type == "cpu":
            small = small_codec.encode_int8 if fmt == "int8" else small_codec.encode_int4
            return Encoded(*small(x))
        return _encode_int8(x) if fmt == "int8" else _encode_int4(x)
    raise ValueError(f"format {fmt!r} is unknown: choose one of {list(FORMATS)}")


def _encode_fp8(x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Tensor:
    """Round to e4m3fn, ties to even; values beyond its largest number become that number."""
    if not isinstance(scale, float) or scale != 1.0:
        x = x / scale
    # counting is slow and rarely needed
    if saturated is not None and float(x.abs().amax()) > FP8_MAX:
        saturated += torch.count_nonzero(x.abs() > FP8_MAX)
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _encode_int8(x: Tensor) -> Encoded:
    """Symmetric, scale = max|x| / 127 rounded to fp16."""
    scale = x.abs().amax(-1, keepdim=True)  # [..., 1]; vector_norm is 15 times slower
    scale = scale.mul_(1 / 127).clamp_(TINY, FP16_MAX).to(torch.float16)
    codes = (x / scale).round_().clamp_(-127, 127).to(torch.int8)
    return Encoded(codes.view(torch.uint8), scale[None, ..., 0])


def _encode_int4(x: Tensor) -> Encoded:
    """Asymmetric over 0..15; byte i holds dims i (low nibble) and i + D/2."""
    half = x.shape[-1] // 2
    meta = torch.stack([x.amax(-1), x.amin(-1)])  # [2, ...]
    minimum = meta[1].clamp_(-FP16_MAX, FP16_MAX).to(torch.float16)
    meta[0].sub_(minimum).mul_(1 / 15).clamp_(TINY, FP16_MAX)
    small = meta.to(torch.float16)
    codes = (x - minimum[..., None]).div_(small[0][..., None]).round_().clamp_(0, 15)
    nibbles = codes.to(torch.int8).view(torch.uint8)  # torch casts to uint8 more slowly
    high = nibbles[..., half:] * 16
    return Encoded(high.bitwise_or_(nibbles[..., :half]), small)


def decode(
    fmt: str, data: Tensor, meta: Tensor | None = None, scale: Tensor | float = 1.0
) -> Tensor:
    """Decode uint8 [..., row_bytes] (last axis contiguous) to fp32 [..., D]; meta is [M, ...]."""
    if fmt == "bf16":
        return data.view(torch.bfloat16).to(torch.float32)
    if fmt == "fp32":
        return data.view(torch.float32)
    if fmt == "fp8_e4m3":
        half = fp8_bits_to_half(
            data, torch.empty(data.shape, dtype=torch.int16, device=data.device)
        )
        return half.to(torch.float32) * 256.0 * scale
    if fmt not in FORMATS:
        raise ValueError(f"format {fmt!r} is unknown: choose one of {list(FORMATS)}")
    if meta is None:
        raise ValueError(f"format {fmt} needs its metadata to decode")
    wide = meta.to(torch.float32)[..., None]  # [M, ..., 1]
    if fmt == "int8":
        return data.view(torch.int8).to(torch.float32) * wide[0]
    codes = torch.cat([data & 15, data >> 4], dim=-1).to(torch.float32)
    return codes * wide[0] + wide[1]


def fp8_bits_to_half(
    data: Tensor, out: Tensor, factor: Tensor | int = 128, mask: Tensor | int = ~0x4000
) -> Tensor:
    """Move e4m3 bits (uint8) into fp16 through `out` (int16, same shape): value / 256, exact.

    A NaN code becomes 1.875, so unwritten bytes cannot spoil a product with zero. The two numbers
    may be given as int16 tensors, which saves a conversion a call.
    """
    out.copy_(data.view(torch.int8))  # the sign is extended into bits 7..15
    return out.mul_(factor).bitwise_and_(mask).view(torch.float16)
