"""TurboQuant's production form: rotated keys on a Lloyd-Max codebook, uniform values.

K: Hadamard rotation, then each coordinate of the unit vector goes to the nearest of the levels that
are best for N(0, 1/D), and one fp16 number a vector gives it back its norm. With norm correction
that number is |x| / |levels of the codes|, so that a decoded key is as long as the key. No QJL (it
hurts through the variance of the softmax). V: `int4` / `int3`, without rotation. Sources:
TurboQuant (arXiv 2504.19874), vLLM's `turboquant_4bit_nc` and `turboquant_3bit_nc`.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kvkernels.formats.base import FP16_MAX, Encoded, Method, PageFormat, Reads
from kvkernels.formats.integer import INT3, INT4
from kvkernels.formats.packing import pack, unpack

# positive levels of the Lloyd-Max quantiser of N(0, 1) (its fixed point, to nine digits)
LEVELS = {
    3: (0.245094179, 0.756005281, 1.343909279, 2.151945705),
    4: (
        0.12839503, 0.388048299, 0.656759119, 0.942340456, 1.256231197, 1.618046386, 2.069017227,
        2.732589571,
    ),
}  # fmt: skip


@lru_cache(maxsize=16)  # a constant, needed by every layer of every step
def codebook(bits: int, device: torch.device | str = "cpu") -> Tensor:
    """All levels in rising order, fp32 [2**bits]."""
    half = LEVELS[bits]
    return torch.tensor([*(-x for x in reversed(half)), *half], dtype=torch.float32, device=device)


@dataclass(frozen=True)
class LloydMax(PageFormat):
    """Rotated keys on a codebook, with one norm per token and head."""

    reads: Reads = "tile"
    rotated: bool = True

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """The corrected norm."""
        return 1

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Nearest level of x * sqrt(D) / |x|."""
        x = x.to(torch.float32)
        levels = codebook(self.bits, x.device)
        norm = x.square().sum(-1, keepdim=True).sqrt()  # [..., 1]
        unit = x * (x.shape[-1] ** 0.5 / norm.clamp_min(1e-30))
        codes = torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2, out_int32=True)
        found = _look_up(levels, codes).square().sum(-1, keepdim=True).sqrt()
        own = (norm / found).clamp_(0.0, FP16_MAX).to(torch.float16)
        return Encoded(pack(codes.to(torch.uint8), self.bits), own[None, ..., 0])

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Level times corrected norm."""
        wide = self.needed(meta)[0].to(torch.float32)[..., None]
        codes = unpack(data, self.bits).to(torch.int32)
        return _look_up(codebook(self.bits, data.device), codes).mul_(wide)


def _look_up(levels: Tensor, codes: Tensor) -> Tensor:
    return levels.index_select(0, codes.flatten()).view(codes.shape)


TURBO4 = Method("turbo4", LloydMax("turbo4", 4), INT4)
TURBO3 = Method("turbo3", LloydMax("turbo3", 3), INT3)
