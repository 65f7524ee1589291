"""int8 and int4 encoders for the few vectors of a decode step on the CPU.

The formulas of `kvkernels.formats.integer` in numpy, bit for bit: at this size calls cost more than
arithmetic, and numpy's are cheaper than torch's by a third to a half.
"""

import numpy as np
import torch
from torch import Tensor

MAX_ELEMENTS = 1 << 13  # beyond it torch's vector loops win
_FP16_MAX = np.float32(65504.0)
_TINY = np.float32(2.0**-24)


def encode_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 x [n, D] to codes uint8 [n, D] and scale fp16 [1, n]."""
    values = x.numpy()
    top = np.abs(values).max(-1, keepdims=True)
    top *= np.float32(1 / 127)
    np.minimum(np.maximum(top, _TINY, out=top), _FP16_MAX, out=top)
    scale = top.astype(np.float16)
    codes = values / scale
    np.rint(codes, out=codes)
    codes.clip(-127, 127, out=codes)
    return torch.from_numpy(codes.astype(np.int8).view(np.uint8)), torch.from_numpy(scale.T)


def encode_int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 x [n, D] to packed codes uint8 [n, D / 2] and scale and minimum fp16 [2, n]."""
    values = x.numpy()
    meta = np.empty((2, values.shape[0], 1), np.float16)
    scale, minimum = meta
    minimum[:] = values.min(-1, keepdims=True).clip(-_FP16_MAX, _FP16_MAX)
    top = values.max(-1, keepdims=True)
    top -= minimum
    top *= np.float32(1 / 15)
    np.minimum(np.maximum(top, _TINY, out=top), _FP16_MAX, out=top)
    scale[:] = top
    codes = values - minimum
    codes /= scale
    np.rint(codes, out=codes)
    codes.clip(0, 15, out=codes)
    nibbles = codes.astype(np.uint8)
    half = nibbles.shape[1] // 2
    packed = nibbles[:, half:] << 4
    packed |= nibbles[:, :half]
    return torch.from_numpy(packed), torch.from_numpy(meta[..., 0])
