"""Each storage scheme once more, in NumPy float64 and from its description alone.

They are the yardstick for the real codecs: what a scheme costs in quality when its arithmetic is as
exact as can be. A function takes vectors x float64 [n, heads, D] in the order of their tokens and
returns what a reader would get back. Numbers that a scheme keeps beside its codes (scales, minima)
are fp16, because that is part of the scheme; everything else is float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import numpy as np

Encode = Callable[[np.ndarray], np.ndarray]
GROUP = 32  # KIVI: tokens of a channel (K), channels of a token (V)
SMALLEST = 2.0**-24  # the smallest fp16 above zero; a constant group must not divide by zero
E4M3_LARGEST, E4M3_SMALLEST_EXPONENT, E4M3_MANTISSA_BITS = 448.0, -6, 3


@dataclass(frozen=True)
class Scheme:
    """How K and V are kept. `tokens`: K and V change only in whole runs of so many tokens."""

    encode_k: Encode
    encode_v: Encode
    tokens: int = 1


def int8(x: np.ndarray) -> np.ndarray:
    """Symmetric, 127 levels either side, one scale a token and head."""
    scale = _fp16(np.abs(x).max(-1, keepdims=True) / 127)
    return np.clip(np.rint(x / scale), -127, 127) * scale


def fp8_e4m3(x: np.ndarray) -> np.ndarray:
    """OCP e4m3fn at scale 1: 3 mantissa bits, ties to even, saturating at 448."""
    exponent = np.frexp(x)[1] - 1  # x = m * 2^exponent, 1 <= |m| < 2
    step = np.exp2(np.maximum(exponent, E4M3_SMALLEST_EXPONENT) - E4M3_MANTISSA_BITS)
    return np.clip(np.rint(x / step) * step, -E4M3_LARGEST, E4M3_LARGEST)


def int4(x: np.ndarray) -> np.ndarray:
    """Asymmetric, 16 levels between minimum and maximum of a token and head."""
    return _uniform(x, 15)


def int4_rotated(x: np.ndarray) -> np.ndarray:
    """int4 of the vector in the orthonormal Hadamard basis, turned back when read."""
    turn = hadamard(x.shape[-1])  # its own inverse
    return int4(x @ turn) @ turn


def kivi_k(x: np.ndarray, bits: int) -> np.ndarray:
    """Per channel: asymmetric over runs of 32 tokens; a run that is not whole stays exact."""
    whole = len(x) // GROUP * GROUP
    runs = x[:whole].reshape(whole // GROUP, GROUP, *x.shape[1:])  # [runs, 32, heads, D]
    coded = np.moveaxis(_uniform(np.moveaxis(runs, 1, -1), 2**bits - 1), -1, 1)
    return np.concatenate([coded.reshape(whole, *x.shape[1:]), x[whole:]])


def kivi_v(x: np.ndarray, bits: int) -> np.ndarray:
    """Per token: asymmetric over runs of 32 channels; tokens outside whole runs stay exact."""
    whole = len(x) // GROUP * GROUP
    group = gcd(GROUP, x.shape[2])  # narrow heads have narrow runs
    runs = x[:whole].reshape(whole, x.shape[1], x.shape[2] // group, group)
    coded = _uniform(runs, 2**bits - 1).reshape(x[:whole].shape)
    return np.concatenate([coded, x[whole:]])


def kivi(k_bits: int, v_bits: int) -> Scheme:
    """KIVI (Liu et al. 2024): K per channel, V per token, the unfinished run in full precision."""
    return Scheme(lambda x: kivi_k(x, k_bits), lambda x: kivi_v(x, v_bits), tokens=GROUP)


def hadamard(size: int) -> np.ndarray:
    """The orthonormal Sylvester matrix of a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    if len(matrix) != size:
        raise ValueError(f"a Hadamard rotation of {size} channels needs a power of two")
    return matrix / np.sqrt(size)


def _uniform(x: np.ndarray, top: int) -> np.ndarray:
    """Codes 0..top between the minimum and the maximum of the last axis."""
    low = x.min(-1, keepdims=True).astype(np.float16).astype(np.float64)
    scale = _fp16((x.max(-1, keepdims=True) - low) / top)
    return np.clip(np.rint((x - low) / scale), 0, top) * scale + low


def _fp16(scale: np.ndarray) -> np.ndarray:
    return np.maximum(scale, SMALLEST).astype(np.float16).astype(np.float64)


SCHEMES: dict[str, Scheme] = {
    "int8": Scheme(int8, int8),
    "fp8_e4m3": Scheme(fp8_e4m3, fp8_e4m3),
    "int4": Scheme(int4, int4),
    "int4_rotated": Scheme(int4_rotated, int4_rotated),
    "kivi4": kivi(4, 4),
    "kivi2": kivi(2, 2),
    "k4v2": kivi(4, 2),
}
