"""Turn fp32 matrices or stored 4-bit groups into the layouts torch's packed kernels read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.model.source import Group4Bit

GROUP = 32
INT4_ROWS = 16  # torch's int4 kernel wants the number of rows divisible by this


@dataclass(frozen=True)
class Packed:
    """A matrix ready for a packed kernel: `codes` and `scale` as `weights.py` describes them."""

    codes: Tensor
    scale: Tensor


def int8_rows(weight: Tensor) -> Packed:
    """Symmetric int8 with one bf16 scale per row.

    weight fp32 [out, in] -> codes int8 [out, in], scale bf16 [out]; value = code * scale. Codes
    are chosen for the rounded scale, so that its rounding costs nothing.
    """
    scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12).to(torch.bfloat16)
    codes = torch.round(weight / scale.float()[:, None]).clamp_(-127, 127)
    return Packed(codes.to(torch.int8), scale)


def can_pack_int4(out_features: int, in_features: int) -> bool:
    """Whether torch's int4 kernel takes a matrix of this shape in groups of 32."""
    return out_features % INT4_ROWS == 0 and in_features % GROUP == 0


def can_pack_int8(in_features: int) -> bool:
    """Whether torch's int8 kernel is right for this many inputs: it loads 16 at a time."""
    return in_features % 16 == 0


def int4_groups(groups: Group4Bit) -> Packed:
    """Stored 4-bit groups in the layout of `aten._weight_int4pack_mm_for_cpu`.

    codes uint8 [out, in / 2] (layout of this CPU and torch build), scale bf16 [in / 32, out, 2]
    holding scale and zero with value = (code - 8) * scale + zero, so zero = minimum + 8 * scale.
    """
    codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(groups.codes.to(torch.int32), 2)
    scale = groups.scale.to(torch.bfloat16)
    # The zero is formed from the rounded scale: the middle of the range then stays exact.
    zero = groups.minimum + 7.5 * groups.scale + 0.5 * scale.float()
    both = torch.stack([scale, zero.to(torch.bfloat16)], dim=-1)  # [out, in / 32, 2]
    return Packed(codes, both.transpose(0, 1).contiguous())


def concat_groups(parts: list[Group4Bit]) -> Group4Bit:
    """Several matrices with the same inputs as one, rows after rows."""
    return Group4Bit(
        codes=torch.cat([part.codes for part in parts]),
        scale=torch.cat([part.scale for part in parts]),
        minimum=torch.cat([part.minimum for part in parts]),
    )
