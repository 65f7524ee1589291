"""Each storage scheme once more, in NumPy float64 and from its description alone.

They are the yardstick for the real codecs: what a scheme costs in quality when its arithmetic is as
exact as can be. A function takes vectors x float64 [n, heads, D] in the order of their tokens and
returns what a reader would get back. Numbers that a scheme keeps beside its codes (scales, minima)
are fp16, because that is part of the scheme; everything else is float64.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd

import numpy as np

Encode = Callable[[np.ndarray], np.ndarray]
GROUP = 32  # KIVI: tokens of a channel (K), channels of a token (V)
SMALLEST = 2.0**-24  # the smallest fp16 above zero; a constant group must not divide by zero
E4M3_LARGEST, E4M3_SMALLEST_EXPONENT, E4M3_MANTISSA_BITS = 448.0, -6, 3


@dataclass(frozen=True)
class Scheme:
    """How K and V are kept. `tokens`: K and V change only in whole runs of so many tokens.

    `pre_rope`: K is kept as projected. `layers`: the scheme of each layer, where they differ.
    """

    encode_k: Encode
    encode_v: Encode
    tokens: int = 1
    pre_rope: bool = False
    layers: "tuple[Scheme, ...]" = ()

    def of(self, layer: int) -> "Scheme":
        """How one layer's K and V are kept."""
        return self.layers[layer] if self.layers else self


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


def kvquant_k(
    x: np.ndarray, middle: np.ndarray, half: np.ndarray, levels: np.ndarray
) -> np.ndarray:
    """Levels of each channel's range; a vector's number furthest outside stays, as fp16.

    middle, half float64 [heads, D]; levels float64 [heads, N].
    """
    place = (x - middle) / half
    coded = middle + half * _to_levels(place, levels)
    return _keep(coded, x, np.abs(place).argmax(-1))


def kvquant_v(x: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Levels of each token's range without the number that widens it most, which stays, as fp16."""
    order = np.argsort(x, -1, kind="stable")
    ranked = np.take_along_axis(x, order, -1)
    upper = ranked[..., -1] - ranked[..., -2] >= ranked[..., 1] - ranked[..., 0]
    most = np.where(upper, ranked[..., -2], ranked[..., -1])[..., None]
    least = np.where(upper, ranked[..., 0], ranked[..., 1])[..., None]
    half = _fp16((most - least) / 2)
    middle = ((most + least) / 2).astype(np.float16).astype(np.float64)
    coded = middle + half * _to_levels((x - middle) / half, levels)
    return _keep(coded, x, np.where(upper, order[..., -1], order[..., 0]))


def kvquant(tables: Mapping[str, np.ndarray], bits: int) -> Scheme:
    """KVQuant (Hooper et al. 2024) with what a calibration measured, layer by layer.

    tables: float64 `k.low`, `k.high` [L, heads, D], `k.levels<bits>`, `v.levels<bits>`
    [L, heads, N].
    """
    middle = (tables["k.low"] + tables["k.high"]) / 2
    half = np.maximum((tables["k.high"] - tables["k.low"]) / 2, 1e-6)
    parts = zip(middle, half, *(tables[f"{plane}.levels{bits}"] for plane in "kv"), strict=True)
    layers = tuple(
        Scheme(partial(kvquant_k, middle=m, half=h, levels=k), partial(kvquant_v, levels=v))
        for m, h, k, v in parts
    )
    return Scheme(layers[0].encode_k, layers[0].encode_v, pre_rope=True, layers=layers)


def low_rank(x: np.ndarray, mean: np.ndarray, rows: np.ndarray, bits: int) -> np.ndarray:
    """Coordinates in orthonormal rows [heads, rank, D]: fp16, or codes between their extremes."""
    found = np.einsum("nhd,hrd->nhr", x - mean, rows)
    kept = found.astype(np.float16).astype(np.float64) if bits == 16 else _uniform(found, 15)
    return np.einsum("nhr,hrd->nhd", kept, rows) + mean


def palu(tables: Mapping[str, np.ndarray], rank: int, bits: int = 16) -> Scheme:
    """Low rank (Chang et al. 2024) in the principal directions that a calibration measured.

    tables: float64 `<plane>.mean` [L, heads, D], `<plane>.basis` [L, heads, D, D]. Codes are of
    coordinates mixed by the discrete cosine transform.
    """
    turn = np.eye(rank)
    if bits < 16:
        places = np.arange(rank)
        turn = np.cos(np.pi * (places + 0.5) * places[:, None] / rank) * (2 / rank) ** 0.5
        turn[0] /= 2**0.5
    layers = []
    for layer in range(len(tables["k.mean"])):
        encodes = [
            partial(low_rank, mean=tables[f"{plane}.mean"][layer],
                    rows=turn @ tables[f"{plane}.basis"][layer][:, :rank], bits=bits)
            for plane in "kv"
        ]  # fmt: skip
        layers.append(Scheme(encodes[0], encodes[1]))
    first = layers[0]
    return Scheme(first.encode_k, first.encode_v, pre_rope=True, layers=tuple(layers))


def _to_levels(place: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The nearest of each head's levels [heads, N] for numbers [n, heads, D]."""
    nearest = np.abs(place[..., None] - levels[:, None]).argmin(-1)
    return np.take_along_axis(np.broadcast_to(levels, (len(place), *levels.shape)), nearest, -1)


def _keep(coded: np.ndarray, x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Put the numbers at places [n, heads] back as fp16."""
    at = at[..., None]
    exact = np.take_along_axis(x, at, -1).astype(np.float16).astype(np.float64)
    np.put_along_axis(coded, at, exact, -1)
    return coded


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
