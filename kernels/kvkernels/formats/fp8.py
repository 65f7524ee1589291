"""8-bit floats of the OCP standard: e4m3fn (largest 448) and e5m2 (largest finite 57344).

The scale is one a layer, one a layer and KV head, or fp16 per token and head inside the page.
Numbers beyond the largest saturate to it and, with a shared scale, are counted. Sources: vLLM's
`fp8` and `fp8_per_token_head` KV caches.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvkernels.formats.base import FP16_MAX, TINY, Encoded, PageFormat


@dataclass(frozen=True)
class Fp8(PageFormat):
    """An 8-bit float `kind` whose bits move into fp16: int8 * `factor` & `mask`.

    The bytes are viewed as int8, so that widening extends the sign. `code_factor`: value of that
    fp16 number's unit.
    """

    kind: torch.dtype = torch.float8_e4m3fn
    top: float = 448.0
    factor: int = 128
    mask: int = ~0x4000

    @property
    def largest(self) -> float:
        """The type's own."""
        return self.top

    @property
    def clears_holes(self) -> bool:
        """A NaN of e4m3 becomes 1.875 as it moves; one of e5m2 stays NaN."""
        return self.mask == -1

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Round to the nearest, ties to even."""
        x = x.to(torch.float32)
        if self.num_scales:
            own = x.abs().amax(-1, keepdim=True).mul_(1 / self.top).clamp_(TINY, FP16_MAX)
            own = own.to(torch.float16)
            return Encoded(self._round(x / own), own[None, ..., 0])
        if not isinstance(scale, float) or scale != 1.0:
            x = x / scale
        # counting is slow and rarely needed
        if saturated is not None and x.numel() and float(x.abs().amax()) > self.top:
            saturated += torch.count_nonzero(x.abs() > self.top)
        return Encoded(self._round(x))

    def _round(self, x: Tensor) -> Tensor:
        return x.clamp(-self.top, self.top).to(self.kind).view(torch.uint8)

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Widen through fp16, exactly."""
        bits = torch.empty(data.shape, dtype=torch.int16, device=data.device)
        x = bits_to_half(data, bits, self.factor, self.mask).to(torch.float32)
        if self.num_scales:
            return x * (self.needed(meta)[0].to(torch.float32) * self.code_factor)[..., None]
        return x * self.code_factor * scale


def bits_to_half(
    data: Tensor, out: Tensor, factor: Tensor | int = 128, mask: Tensor | int = ~0x4000
) -> Tensor:
    """Move fp8 bits (uint8) into fp16 through `out` (int16, same shape), exactly.

    The default numbers read e4m3 as value / 256: a NaN code becomes 1.875, so unwritten bytes
    cannot spoil a product with zero. They may be given as int16 tensors, which saves a conversion.
    """
    out.copy_(data.view(torch.int8))  # the sign is extended into bits 7..15
    return out.mul_(factor).bitwise_and_(mask).view(torch.float16)


E4M3 = Fp8("fp8_e4m3", 8, torch.int8, shared="tensor", code_factor=256.0)
E4M3_HEAD = Fp8("fp8_e4m3_head", 8, torch.int8, shared="head", code_factor=256.0)
E4M3_TOKEN = Fp8("fp8_e4m3_token", 8, torch.int8, num_scales=1, code_factor=256.0)
_E5M2: Any = {"kind": torch.float8_e5m2, "top": 57344.0, "factor": 256, "mask": -1}
E5M2 = Fp8("fp8_e5m2", 8, torch.int8, shared="tensor", **_E5M2)
E5M2_HEAD = Fp8("fp8_e5m2_head", 8, torch.int8, shared="head", **_E5M2)
E5M2_TOKEN = Fp8("fp8_e5m2_token", 8, torch.int8, num_scales=1, **_E5M2)
