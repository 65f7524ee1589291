"""KVQuant: keys before RoPE on calibrated channels, values per token, both on learned levels.

K: each channel has a middle and a half range, measured beforehand, so that a token can be coded at
once: x = middle + half * level[code]. V: middle and half range of the token and head itself, fp16.
Levels (nuq) lie in [-1, 1], one set a layer and head for K and V each. One number of every vector
is kept exactly, as fp16 beside its place: of K the one furthest outside its channel's range, of V
the one without which the range shrinks most. A cap of one makes the bytes exact. Metadata: K value
and place; V half range, middle, value, place. Source: KVQuant (arXiv 2401.18079); its levels are
weighted by Fisher information, ours are not.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvkernels.formats.base import FP16_MAX, TINY, Encoded, Method, PageFormat, Reads, Shared
from kvkernels.formats.packing import pack, unpack

NEUTRAL_RANGE = 4.0  # half range of a channel that nothing was measured for


@dataclass(frozen=True)
class NuqChannels(PageFormat):
    """Keys; table: middle [D], half range [D], levels [2**bits]."""

    reads: Reads = "tile"
    shared: Shared = "table"
    pre_rope: bool = True

    def table_size(self, head_dim: int) -> int:
        """Numbers of a layer and head outside the pages."""
        return 2 * head_dim + 2**self.bits

    def neutral_table(self, head_dim: int) -> Tensor:
        """Equal channels, evenly spaced levels."""
        half = torch.full((head_dim,), NEUTRAL_RANGE)
        return torch.cat([torch.zeros(head_dim), half, even_levels(self.bits)])

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """The exact number and its place."""
        return 2

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Nearest level of each channel, and the furthest number as it is."""
        x = x.to(torch.float32)
        middle, half, levels = self._parts(scale, x)
        place = (x - middle) / half
        size = place.abs()
        at = first_place(size == size.amax(-1, keepdim=True))
        meta = torch.stack([kept(x, at), at[..., 0].to(torch.float16)])
        return Encoded(pack(nearest(place, levels), self.bits), meta)

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Middle plus half range times level; the exact number in its place."""
        codes = unpack(data, self.bits)
        middle, half, levels = self._parts(scale, codes)
        x = torch.addcmul(middle, half, look_up(levels, codes))
        return put_back(x, self.needed(meta))

    def _parts(self, scale: Tensor | float, like: Tensor) -> list[Tensor]:
        dim = like.shape[-1]
        table = self.table(scale, dim, like.device)
        return list(table.split([dim, dim, 2**self.bits], -1))


@dataclass(frozen=True)
class NuqTokens(PageFormat):
    """Values; table: levels [2**bits]."""

    reads: Reads = "tile"
    shared: Shared = "table"

    def table_size(self, head_dim: int) -> int:
        """Numbers of a layer and head outside the pages."""
        return 2**self.bits

    def neutral_table(self, head_dim: int) -> Tensor:
        """Evenly spaced levels."""
        return even_levels(self.bits)

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """Half range and middle, the exact number and its place."""
        return 4

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Nearest level between minimum and maximum of what is left without one number."""
        x = x.to(torch.float32)
        levels = self.table(scale, x.shape[-1], x.device)
        place, half, middle, at = dense_range(x)
        meta = torch.stack(
            [half[..., 0], middle[..., 0], kept(x, at), at[..., 0].to(torch.float16)]
        )
        return Encoded(pack(nearest(place, levels), self.bits), meta)

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Middle plus half range times level; the exact number in its place."""
        numbers = self.needed(meta)
        codes = unpack(data, self.bits)
        levels = self.table(scale, codes.shape[-1], codes.device)
        wide = numbers[:2].to(torch.float32)[..., None]
        x = torch.addcmul(wide[1], wide[0], look_up(levels, codes))
        return put_back(x, numbers[2:])


def dense_range(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x within its range [..., D], half and middle fp16 [..., 1], place of the number left out).

    Left out is the largest or the smallest, whichever lies further from the next.
    """
    top, low = x.topk(2, -1).values, x.topk(2, -1, largest=False).values
    upper = top[..., :1] - top[..., 1:] >= low[..., 1:] - low[..., :1]
    at = first_place(x == torch.where(upper, top[..., :1], low[..., :1]))
    most = torch.where(upper, top[..., 1:], top[..., :1])
    least = torch.where(upper, low[..., :1], low[..., 1:])
    half = ((most - least) * 0.5).clamp_(TINY, FP16_MAX).to(torch.float16)
    middle = ((most + least) * 0.5).clamp_(-FP16_MAX, FP16_MAX).to(torch.float16)
    return (x - middle) / half, half, middle, at


def even_levels(bits: int) -> Tensor:
    """2**bits levels from -1 on, zero among them."""
    half = 2 ** (bits - 1)
    return torch.arange(-half, half) / half


def nearest(place: Tensor, levels: Tensor) -> Tensor:
    """Code uint8 of the nearest of rising levels [..., N], which broadcast against place [..., D].

    One comparison a boundary, so that each layer and head can have levels of its own.
    """
    bounds = (levels[..., 1:] + levels[..., :-1]) / 2
    codes = torch.zeros(place.shape, dtype=torch.uint8, device=place.device)
    for number in range(bounds.shape[-1]):
        codes += place > bounds[..., number : number + 1]
    return codes


def look_up(levels: Tensor, codes: Tensor) -> Tensor:
    """Level of each code [..., D]; levels [..., N] broadcast against all but the last axis."""
    wide = levels.expand(*codes.shape[:-1], levels.shape[-1])
    return wide.gather(-1, codes.to(torch.int64))


def first_place(found: Tensor) -> Tensor:
    """Index of the first True of each row, int64 [..., 1]; every row has one (NaN: the last)."""
    dim = found.shape[-1]
    places = torch.arange(dim, device=found.device)
    return torch.where(found, places, dim - 1).amin(-1, keepdim=True)


def kept(x: Tensor, at: Tensor) -> Tensor:
    """The number at a place, fp16 [...]."""
    return x.gather(-1, at)[..., 0].clamp(-FP16_MAX, FP16_MAX).to(torch.float16)


def put_back(x: Tensor, numbers: Tensor) -> Tensor:
    """Put the exact numbers [2, ...] (value, place) into x [..., D]."""
    value, place = numbers.to(torch.float32)[..., None]
    dims = torch.arange(x.shape[-1], device=x.device)
    return torch.where(dims == place, value, x)


def _method(bits: int) -> Method:
    name = f"kvquant{bits}"
    return Method(name, NuqChannels(name, bits), NuqTokens(name, bits))


KVQUANT4, KVQUANT3, KVQUANT2 = _method(4), _method(3), _method(2)
