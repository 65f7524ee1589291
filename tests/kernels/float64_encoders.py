"""Every scheme once more, in float64 NumPy, from its description: what a page should read as.

Each takes float64 [S, D] (the tokens of one page and head) and returns the decoded numbers. Only
what a page stores is rounded: codes, fp16 scales and minima, e4m3 block scales.
"""

from collections.abc import Callable
from math import erf

import numpy as np

Array = np.ndarray


def fp16(x: Array) -> Array:
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)


def positive(x: Array) -> Array:
    return fp16(np.maximum(x, 2.0**-24))


def float_of(x: Array, mantissa: int, least: int, top: float) -> Array:
    """Nearest float with so many mantissa bits and least exponent, ties to even, saturating."""
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 1e-300)))
    step = 2.0 ** (np.maximum(exponent, least) - mantissa)
    return np.clip(np.rint(x / step) * step, -top, top)


def e4m3(x: Array) -> Array:
    return float_of(x, 3, -6, 448)


def e5m2(x: Array) -> Array:
    return float_of(x, 2, -14, 57344)


def e2m1(x: Array) -> Array:
    return float_of(x, 1, 0, 6)


def bf16(x: Array) -> Array:
    return float_of(x.astype(np.float32).astype(np.float64), 7, -126, 3.3e38)


def shared(inner: Callable[[Array], Array], scale: float) -> Callable[[Array], Array]:
    """A scale outside the page."""
    return lambda x: inner(x / scale) * scale


def fp8_token(inner: Callable[[Array], Array], top: float) -> Callable[[Array], Array]:
    """One scale a token: its largest number becomes the type's."""

    def encode(x: Array) -> Array:
        scale = positive(np.abs(x).max(-1, keepdims=True) / top)
        return inner(x / scale) * scale

    return encode


def int8(x: Array) -> Array:
    scale = positive(np.abs(x).max(-1, keepdims=True) / 127)
    return np.clip(np.rint(x / scale), -127, 127) * scale


def affine(x: Array, bits: int, axis: int) -> Array:
    levels = 2**bits - 1
    low = fp16(x.min(axis, keepdims=True))
    scale = positive((x.max(axis, keepdims=True) - low) / levels)
    return np.clip(np.rint((x - low) / scale), 0, levels) * scale + low


def per_token(bits: int) -> Callable[[Array], Array]:
    return lambda x: affine(x, bits, -1)


def per_channels(bits: int, group: int = 32) -> Callable[[Array], Array]:
    return lambda x: affine(x.reshape(len(x), -1, group), bits, -1).reshape(x.shape)


def per_tokens(bits: int, group: int = 32) -> Callable[[Array], Array]:
    """KIVI's keys: groups of `group` tokens of one channel."""
    return lambda x: affine(x.reshape(-1, min(group, len(x)), x.shape[1]), bits, 1).reshape(x.shape)


def rotation(dim: int) -> Array:
    """Sylvester's Hadamard matrix over sqrt(D), element by element."""
    index = np.arange(dim)
    odd = np.array([[bin(i & j).count("1") % 2 for j in index] for i in index])
    return (1.0 - 2.0 * odd) / np.sqrt(dim)


def rotated(inner: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: inner(x @ rotation(x.shape[1])) @ rotation(x.shape[1]).T


def nvfp4(x: Array) -> Array:
    blocks = x.reshape(len(x), -1, 16)
    scale = e4m3(np.clip(np.abs(blocks).max(-1, keepdims=True) / 6, 2.0**-9, 448))
    return (e2m1(blocks / scale) * scale).reshape(x.shape)


def lloyd_max(bits: int) -> Array:
    """Levels of the quantiser with least squared error for N(0, 1), by Lloyd's iteration."""
    levels = np.linspace(-2, 2, 2**bits)
    for _ in range(3000):
        cuts = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        below = np.array([(1 + erf(x / np.sqrt(2))) / 2 for x in cuts])
        density = np.exp(-cuts * cuts / 2) / np.sqrt(2 * np.pi)
        levels = -np.diff(density) / np.diff(below)
    return levels


def turbo(bits: int) -> Callable[[Array], Array]:
    levels = lloyd_max(bits)

    def inner(x: Array) -> Array:
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        unit = x / norm * np.sqrt(x.shape[1])
        chosen = levels[np.abs(unit[..., None] - levels).argmin(-1)]
        return chosen * fp16(norm / np.linalg.norm(chosen, axis=-1, keepdims=True))

    return rotated(inner)


def even(bits: int) -> Array:
    return np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)) / 2 ** (bits - 1)


def to_levels(x: Array, levels: Array) -> Array:
    """The nearest level; the lower of two equally near ones."""
    return levels[np.abs(x[..., None] - levels).argmin(-1)]


def nuq_channels(
    bits: int, middle: Array | float = 0.0, half: Array | float = 4.0, levels: Array | None = None
) -> Callable[[Array], Array]:
    """Levels of a channel's range; the number furthest outside stays, as fp16."""
    known = even(bits) if levels is None else levels

    def inner(x: Array) -> Array:
        place = (x - middle) / half
        out = middle + half * to_levels(place, known)
        rows, at = np.arange(len(x)), np.abs(place).argmax(-1)
        out[rows, at] = fp16(x[rows, at])
        return out

    return inner


def nuq_tokens(bits: int, levels: Array | None = None) -> Callable[[Array], Array]:
    """Levels of a token's range without the number that widens it most, which stays, as fp16."""
    known = even(bits) if levels is None else levels

    def inner(x: Array) -> Array:
        order = np.argsort(x, -1, kind="stable")
        rows, ranked = np.arange(len(x)), np.sort(x, -1)
        upper = ranked[:, -1] - ranked[:, -2] >= ranked[:, 1] - ranked[:, 0]
        at = np.where(upper, order[:, -1], order[:, 0])
        most = np.where(upper, ranked[:, -2], ranked[:, -1])[:, None]
        least = np.where(upper, ranked[:, 0], ranked[:, 1])[:, None]
        half, middle = positive((most - least) / 2), fp16((most + least) / 2)
        out = middle + half * to_levels((x - middle) / half, known)
        out[rows, at] = fp16(x[rows, at])
        return out

    return inner


def low_rank(
    bits: int, mean: Array | float = 0.0, basis: Array | None = None
) -> Callable[[Array], Array]:
    """Coordinates in the rows of a basis (by default the first half of the dimensions)."""

    def inner(x: Array) -> Array:
        rows = np.eye(x.shape[1])[: x.shape[1] // 2] if basis is None else basis
        found = (x - mean) @ rows.T
        kept = fp16(found) if bits == 16 else per_token(bits)(found)
        return kept @ rows + mean

    return inner


KEYS: dict[str, Callable[[Array], Array]] = {
    "fp32": lambda x: x.astype(np.float32).astype(np.float64),
    "bf16": bf16,
    "fp8_e4m3": e4m3,
    "fp8_e4m3_head": e4m3,
    "fp8_e5m2": e5m2,
    "fp8_e5m2_head": e5m2,
    "fp8_e4m3_token": fp8_token(e4m3, 448),
    "fp8_e5m2_token": fp8_token(e5m2, 57344),
    "int8": int8,
    "int4": per_token(4),
    "int3": per_token(3),
    "int2": per_channels(2),
    "int4_rotated": rotated(per_token(4)),
    "nvfp4": nvfp4,
    "turbo4": turbo(4),
    "turbo3": turbo(3),
    "kivi4": per_tokens(4),
    "kivi3": per_tokens(3),
    "kivi2": per_tokens(2),
    "kvquant4": nuq_channels(4),
    "kvquant3": nuq_channels(3),
    "kvquant2": nuq_channels(2),
    "lowrank": low_rank(16),
    "lowrank_int4": low_rank(4),
}
VALUES = KEYS | {
    "turbo4": per_token(4),
    "turbo3": per_token(3),
    "kivi4": per_channels(4),
    "kivi3": per_channels(3),
    "kivi2": per_channels(2),
    "kvquant4": nuq_tokens(4),
    "kvquant3": nuq_tokens(3),
    "kvquant2": nuq_tokens(2),
}
