"""Numbers as they are: bf16 and fp32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvkernels.formats.base import Encoded, PageFormat


@dataclass(frozen=True)
class Plain(PageFormat):
    """A float type of torch, `dtype`, without metadata."""

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Round to the type."""
        return Encoded(x.to(self.dtype).contiguous().view(torch.uint8))

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Widen to fp32 (a view where the page holds fp32)."""
        return data.view(self.dtype).to(torch.float32)


BF16 = Plain("bf16", 16, torch.bfloat16)
FP32 = Plain("fp32", 32, torch.float32)
