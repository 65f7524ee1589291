"""Pages of a batch to operands of a matrix product: gather, then the cheapest dequantisation.

Buffers are bound once a step; a read of a layer is then a handful of torch calls that fill them.
Shapes: M = rows x KV heads of a batch or of a tile of it, T slots in P pages of S.
"""

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from kvkernels.api import Scratch, Timers
from kvkernels.formats import PageFormat
from kvkernels.formats.fp8 import Fp8, bits_to_half
from kvkernels.layout import PageSpec
from kvkernels.plan import Batch


@dataclass(frozen=True)
class Operand:
    """One plane as it goes into a product; value = code * scale + low (times a shared scale).

    parts: [parts, M, T, D / parts] (int4 has two parts, its nibbles); scale, low: fp32 [M, 1, T]
    or None.
    """

    parts: Tensor
    scale: Tensor | None = None
    low: Tensor | None = None


class Plane:
    """One gather and its dequantisation: chunks of one format to numbers of one dtype."""

    def __init__(
        self,
        spec: PageSpec,
        fmt: PageFormat,
        index: Tensor,
        dtype: torch.dtype,
        holes: Tensor | None,
        scratch: Scratch,
        name: str,
    ) -> None:
        """Bind buffers of `scratch`; `index` [n] chunks, `holes` slot rows to clear in floats.

        `parts` [parts, n * S, D / parts] is valid until the next read with this `name`.
        """
        self.source = fmt.dtype
        row = fmt.row_bytes(spec.head_dim) // self.source.itemsize
        self.width = spec.block_size * row
        self._index, self._scratch = index, scratch
        self._raw = scratch.get(f"{name}.raw", (index.numel(), self.width), self.source)
        raw = self._raw.view(1, -1, row)
        self._holes = holes if fmt.clears_holes else None
        self._slots = raw[0]
        self._codes, self._bits, self._nibbles = raw[0], None, None
        if fmt.num_parts == 2:
            raw = scratch.get(f"{name}.nibbles", (2, *raw.shape[1:]), torch.uint8)
            self._nibbles = (raw[0], raw[1])
            self._constants = torch.tensor([15, 4], dtype=torch.uint8).unbind()
        elif isinstance(fmt, Fp8):
            numbers = [fmt.factor, fmt.mask]
            self._constants = torch.tensor(numbers, dtype=torch.int16).unbind()
            self._bits = scratch.get(f"{name}.bits", tuple(raw.shape[1:]), torch.int16)
            raw = self._bits.view(1, *raw.shape[1:]).view(torch.float16)
        self._narrow, self._wide = raw, None
        if raw.dtype != dtype:
            self._wide = raw = scratch.get(f"{name}.{dtype}", tuple(raw.shape), dtype)
        self.parts = raw

    def read(self, arena: Tensor, start: int, timers: Timers) -> None:
        """Fill `parts` from the layer that begins at byte `start` of each page."""
        begun = perf_counter()
        rows = self._scratch.chunks(arena, self.source, start, self.width)
        torch.index_select(rows, 0, self._index, out=self._raw)
        if self._holes is not None:
            self._slots.index_fill_(0, self._holes, 0)
        gathered = perf_counter()
        timers.gather_s += gathered - begun
        if self._bits is not None:
            bits_to_half(self._codes, self._bits, *self._constants)
        elif self._nibbles is not None:
            torch.bitwise_and(self._codes, self._constants[0], out=self._nibbles[0])
            torch.bitwise_right_shift(self._codes, self._constants[1], out=self._nibbles[1])
        if self._wide is not None:
            self._wide.copy_(self._narrow)
        timers.dequant_s += perf_counter() - gathered


class Metadata:
    """Scales and minima of K and V of a whole batch, as fp32 [M, 1, P * S] each."""

    def __init__(self, spec: PageSpec, batch: Batch, scratch: Scratch) -> None:
        """Bind buffers; `key` and `value` are (scale, low), None where the format has none."""
        self.key: tuple[Tensor | None, Tensor | None] = (None, None)
        self.value: tuple[Tensor | None, Tensor | None] = (None, None)
        self._index, self._scratch = batch.meta, scratch
        if self._index is None:
            return
        kinds = [spec.k_num_meta, spec.v_num_meta]
        heads, slots, rows, pages = (
            spec.num_kv_heads, spec.block_size, batch.num_rows, batch.num_pages,
        )  # fmt: skip
        self._width = heads * slots * sum(kinds)
        self._raw = scratch.get("meta", (self._index.numel(), self._width), torch.float16)
        wide = scratch.get("meta.fp32", (sum(kinds), rows, heads, pages, slots), torch.float32)
        flat = wide.view(sum(kinds), rows * heads, 1, pages * slots)
        self.key = (
            flat[0] if kinds[0] else None,
            flat[1] if kinds[0] == 2 else None,
        )
        self.value = (
            flat[kinds[0]] if kinds[1] else None,
            flat[kinds[0] + 1] if kinds[1] == 2 else None,
        )
        raw = self._raw.view(rows, pages, -1, slots)
        if kinds[0] == kinds[1]:
            both = raw.view(rows, pages, 2, heads, kinds[0], slots).permute(2, 4, 0, 3, 1, 5)
            self._copies = [(wide.view(2, kinds[0], *wide.shape[1:]), both)]
        else:
            at = kinds[0] * heads
            key = raw[:, :, :at].unflatten(2, (heads, -1)) if kinds[0] else None
            value = raw[:, :, at:].unflatten(2, (heads, -1)) if kinds[1] else None
            targets = (wide[: kinds[0]], wide[kinds[0] :])
            self._copies = [
                (target, part.permute(3, 0, 2, 1, 4))
                for target, part in zip(targets, (key, value), strict=True)
                if part is not None
            ]
        self._flat, self._holes = wide.view(-1), None
        if batch.tail_holes is not None:
            plane = rows * heads * pages * slots
            offsets = torch.arange(sum(kinds))[:, None] * plane
            self._holes = (batch.tail_holes + offsets).view(-1)

    def read(self, arena: Tensor, start: int, timers: Timers) -> None:
        """Fill both operands' metadata; unwritten slots become zero."""
        if self._index is None:
            return
        begun = perf_counter()
        rows = self._scratch.chunks(arena, torch.float16, start, self._width)
        torch.index_select(rows, 0, self._index, out=self._raw)
        gathered = perf_counter()
        timers.gather_s += gathered - begun
        for wide, half in self._copies:
            wide.copy_(half)
        if self._holes is not None:
            self._flat.index_fill_(0, self._holes, 0.0)
        timers.dequant_s += perf_counter() - gathered


class Reader:
    """Reads K and V of a whole batch; `key` and `value` are valid until the next read."""

    def __init__(
        self, spec: PageSpec, batch: Batch, dtype: torch.dtype, scratch: Scratch, timers: Timers
    ) -> None:
        """Bind buffers; `dtype` is the product type. T is `batch.num_slots`."""
        self._layer_bytes, self._timers = spec.layer_bytes, timers
        self._metadata = Metadata(spec, batch, scratch)
        everything = (0, batch.num_rows * spec.num_kv_heads)
        self._planes, parts = bind_planes(
            spec, batch, dtype, everything, batch.holes, scratch, joined=True
        )
        slots = slice(batch.num_slots)
        metadata = (self._metadata.key, self._metadata.value)
        self.key, self.value = (
            Operand(part[:, :, slots], *(x if x is None else x[..., slots] for x in meta))
            for part, meta in zip(parts, metadata, strict=True)
        )

    def read(self, arena: Tensor, layer: int) -> None:
        """Fill the operands with one layer's K and V; unwritten slots contribute exact zeros."""
        start = layer * self._layer_bytes
        self._metadata.read(arena, start, self._timers)
        for plane in self._planes:
            if plane is not None:
                plane.read(arena, start, self._timers)


def bind_planes(
    spec: PageSpec,
    batch: Batch,
    dtype: torch.dtype,
    tile: tuple[int, int],
    holes: Tensor | None,
    scratch: Scratch,
    *,
    joined: bool,
    value_dtype: torch.dtype | None = None,
) -> tuple[tuple[Plane, Plane | None], tuple[Tensor, Tensor]]:
    """Bind K and V of a tile [first, last) of M.

    `holes`: unwritten slot rows of the batch. `joined`: K and V are held at the same time, by one
    gather where they share a format; else they take turns in one buffer. `value_dtype`: where V
    becomes another dtype than K.
    Returns the planes to read (no second one where the first reads both) and K and V as
    [parts, last - first, P * S, D / parts].
    """
    first, last = tile
    formats = (spec.k, spec.v)
    slots = batch.num_pages * spec.block_size
    index = batch.planes[:, first * batch.num_pages : last * batch.num_pages]
    holes = tile_holes(holes, first * slots, last * slots)
    count = last - first
    value_dtype = value_dtype or dtype
    if joined and formats[0] == formats[1] and dtype == value_dtype:
        if holes is not None:
            holes = torch.cat([holes, holes + count * slots])
        both = Plane(spec, formats[0], index.reshape(-1), dtype, holes, scratch, "tile")
        parts = both.parts.view(both.parts.shape[0], 2, count, slots, -1)
        return (both, None), (parts[:, 0], parts[:, 1])
    key = Plane(spec, formats[0], index[0], dtype, holes, scratch, "tile")
    name = "value" if joined else "tile"
    value = Plane(spec, formats[1], index[1], value_dtype, holes, scratch, name)
    views = (x.parts.view(x.parts.shape[0], count, slots, -1) for x in (key, value))
    return (key, value), (next(views), next(views))


def tile_holes(holes: Tensor | None, first: int, last: int) -> Tensor | None:
    """Those of a batch's unwritten slot rows that lie in [first, last), counted from `first`."""
    if holes is None:
        return None
    inside = holes[(holes >= first) & (holes < last)] - first
    return inside if inside.numel() else None
