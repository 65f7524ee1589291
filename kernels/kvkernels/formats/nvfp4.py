"""NVFP4: E2M1 codes, an E4M3 scale per block of 16 channels, one fp32 scale a layer.

x = code * block * shared; the block scale is max|x| / 6 rounded to e4m3fn (within 2**-9 .. 448).
Codes are packed as int4's: byte i holds dims i and i + D/2. Two block scales fill one 16-bit number
of the page's metadata. Source: NVIDIA's NVFP4, SGLang's `fp4_e2m1` cache.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import torch
from torch import Tensor

from kvkernels.formats.base import Encoded, PageFormat, Reads
from kvkernels.formats.packing import pack, unpack

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_TINY = 2.0**-9  # smallest e4m3 number above zero
# halfway points of 0, .5, 1, 1.5, 2, 3, 4, 6; a tie goes to the even code: (bound, tie goes up)
STEPS = (
    (0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True),
    (5.0, False),
)  # fmt: skip


@dataclass(frozen=True)
class Nvfp4(PageFormat):
    """E2M1 in blocks of `gcd(16, D)` channels."""

    reads: Reads = "tile"

    @property
    def largest(self) -> float:
        """The largest code times the largest block scale."""
        return E2M1_MAX * E4M3_MAX

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """Two block scales a 16-bit number."""
        return -(-(head_dim // gcd(BLOCK, head_dim)) // 2)

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Scale blocks, round codes; counts numbers that no block scale reaches."""
        x = x.to(torch.float32)
        if not isinstance(scale, float) or scale != 1.0:
            x = x / scale
        most = E2M1_MAX * E4M3_MAX
        if saturated is not None and x.numel() and float(x.abs().amax()) > most:
            saturated += torch.count_nonzero(x.abs() > most)
        parts = x.unflatten(-1, (-1, gcd(BLOCK, x.shape[-1])))
        own = parts.abs().amax(-1, keepdim=True).mul_(1 / E2M1_MAX).clamp_(E4M3_TINY, E4M3_MAX)
        own = own.to(torch.float8_e4m3fn)  # [..., D / 16, 1]
        codes = _round(parts / own.to(torch.float32)).flatten(-2)
        scales = own[..., 0].view(torch.uint8)
        if scales.shape[-1] % 2:
            scales = torch.nn.functional.pad(scales, (0, 1))
        meta = scales.contiguous().view(torch.float16)  # bits only: no number is read as fp16
        return Encoded(pack(codes, 4), meta.movedim(-1, 0))

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Code times block scale times shared scale."""
        halves = self.needed(meta).movedim(0, -1)
        # an axis of one element counts as contiguous with any stride, and view then refuses it
        bits = halves.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        codes = unpack(data, 4)
        blocks = codes.shape[-1] // gcd(BLOCK, codes.shape[-1])
        own = bits[..., :blocks].view(torch.float8_e4m3fn).to(torch.float32)[..., None]
        values = e2m1_values(data.device).index_select(0, codes.flatten().to(torch.int32))
        x = values.view(*codes.shape[:-1], blocks, -1).mul_(own).flatten(-2)
        return x if isinstance(scale, float) and scale == 1.0 else x * scale


@lru_cache(maxsize=8)  # a constant
def e2m1_values(device: torch.device) -> Tensor:
    """Value of each E2M1 code, fp32 [16]."""
    half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return torch.tensor([*half, *(-x for x in half)], device=device)


def _round(x: Tensor) -> Tensor:
    """fp32 to E2M1 codes (uint8), ties to even, saturating at 6."""
    size = x.abs()
    codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for bound, up in STEPS:
        codes += size >= bound if up else size > bound
    return codes | (torch.signbit(x).to(torch.uint8) << 3)


NVFP4 = Nvfp4("nvfp4", 4, shared="tensor")
