"""Pages of a batch to operands of a matrix product: gather, then the cheapest dequantisation.

A reader is bound once a step to a batch and its scratch; a read of a layer is then a handful of
torch calls that fill the same buffers. Shapes: B rows, h KV heads, T slots in P pages of S.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvkernels.api import Scratch, Timers, span
from kvkernels.codec import DTYPES, fp8_bits_to_half
from kvkernels.layout import FORMATS, PageSpec
from kvkernels.plan import Batch


@dataclass(frozen=True)
class Operand:
    """One plane as it goes into a product; value = code * scale + low (times a shared scale).

    parts: [parts, B * h, T, D / parts] (int4 has two parts, its nibbles); scale, low: fp32
    [B * h, 1, T] or None.
    """

    parts: Tensor
    scale: Tensor | None = None
    low: Tensor | None = None


@dataclass(frozen=True)
class _Source:
    """One gather: which typed rows to read into which buffer."""

    dtype: torch.dtype
    width: int
    index: Tensor
    out: Tensor  # [chunks, width]
    holes: Tensor | None  # rows of `slots` to clear
    slots: Tensor  # out viewed [-1, row]


@dataclass(frozen=True)
class _Step:
    """One dequantisation of a raw plane buffer into a wider one."""

    kind: str
    raw: Tensor
    out: Tensor


class Reader:
    """Reads K and V of one batch; `key` and `value` are valid until the next read."""

    def __init__(
        self,
        spec: PageSpec,
        batch: Batch,
        dtype: torch.dtype,
        folds: bool,
        scratch: Scratch,
        timers: Timers | None,
    ) -> None:
        """Bind buffers; `dtype` is the product type; `folds`: T is whole pages, P * S.

        torch's bf16 and fp32 batched products copy or slow down on sliced slots, its fused
        attention does not.
        """
        self.spec, self.batch, self.scratch, self.timers = spec, batch, scratch, timers
        self.folds = folds
        self._sources: list[_Source] = []
        self._steps: list[_Step] = []
        padded = batch.num_pages * spec.block_size
        self._shape = (batch.num_rows * spec.num_kv_heads, padded)
        self._slots = padded if folds else batch.num_slots
        planes = self._bind_data(dtype)
        scales = self._bind_meta()
        operands = []
        for parts, meta in zip(planes, scales, strict=True):
            view = parts.view(parts.shape[0], *self._shape, -1)[:, :, : self._slots]
            operands.append(Operand(view, *meta))
        self.key, self.value = operands

    def _bind_data(self, dtype: torch.dtype) -> list[Tensor]:
        """Create gathers and dequantisations; returns K and V as [parts, B * h * P * S, D']."""
        planes: list[Tensor] = []
        for number, plane in enumerate(self.batch.planes):
            raw = self._bind_gather(plane.fmt, plane.planes, plane.data, f"gather{number}")
            planes += self._bind_dequant(plane.fmt, raw, dtype, f"plane{number}")
        return planes

    def _bind_gather(self, fmt: str, planes: int, index: Tensor, name: str) -> Tensor:
        dtype = DTYPES[fmt]
        row = self.spec.head_dim * FORMATS[fmt].bits // 8 // dtype.itemsize
        width = self.spec.block_size * row
        out = self.scratch.get(name, (index.numel(), width), dtype)
        holes = self._holes() if dtype.is_floating_point else None
        slots = out.view(-1, row)
        if holes is not None and planes == 2:
            holes = torch.cat([holes, holes + slots.shape[0] // 2])
        self._sources.append(_Source(dtype, width, index, out, holes, slots))
        return out.view(planes, -1, row)

    def _holes(self) -> Tensor | None:
        """Unwritten slots that a product would touch."""
        return self.batch.tail_holes if self.folds else self.batch.holes

    def _bind_dequant(self, fmt: str, raw: Tensor, dtype: torch.dtype, name: str) -> list[Tensor]:
        """Plan raw [planes, rows, row] to [planes, parts, rows, D / parts] of `dtype`."""
        planes, rows, row = raw.shape
        if fmt == "int4":
            nibbles = self.scratch.get(f"{name}.nibbles", (planes, 2, rows, row), torch.uint8)
            self._steps.append(_Step("nibbles", raw, nibbles))
            raw = nibbles
        else:
            raw = raw[:, None]
        if fmt == "fp8_e4m3":
            bits = self.scratch.get(f"{name}.bits", tuple(raw.shape), torch.int16)
            self._steps.append(_Step("fp8", raw, bits))
            raw = bits.view(torch.float16)
        if raw.dtype != dtype:
            wide = self.scratch.get(f"{name}.{dtype}", tuple(raw.shape), dtype)
            self._steps.append(_Step("cast", raw, wide))
            raw = wide
        return list(raw)

    def _bind_meta(self) -> list[tuple[Tensor, ...]]:
        """Create the metadata gather; returns (scale, low) views of K and of V."""
        batch, spec = self.batch, self.spec
        kinds = [FORMATS[fmt].meta for fmt in (spec.k_format, spec.v_format)]
        self._meta_copies: list[tuple[Tensor, Tensor]] = []
        self._meta: Tensor | None = None
        if batch.meta is None:
            return [(), ()]
        heads, slots = spec.num_kv_heads, spec.block_size
        width = heads * slots * sum(kinds)
        out = self.scratch.get("meta", (batch.meta.numel(), width), torch.float16)
        self._sources.append(_Source(torch.float16, width, batch.meta, out, None, out))
        shape = (sum(kinds), batch.num_rows, heads, batch.num_pages, slots)
        wide = self.scratch.get("meta.fp32", shape, torch.float32)
        pages = out.view(batch.num_rows, batch.num_pages, width)
        start = 0
        for kind, first in zip(kinds, (0, kinds[0]), strict=True):
            part = pages[:, :, start : start + heads * kind * slots]
            start += heads * kind * slots
            if kind:
                source = part.view(batch.num_rows, -1, heads, kind, slots).permute(3, 0, 2, 1, 4)
                self._meta_copies.append((wide[first : first + kind], source))
        flat = wide.view(sum(kinds), *self._shape)[:, :, None, : self._slots]
        self._meta = wide.view(sum(kinds), batch.num_rows, heads, -1)
        return [tuple(flat[: kinds[0]]), tuple(flat[kinds[0] :])]

    def read(self, arena: Tensor, layer: int) -> None:
        """Fill the operands with one layer's K and V; unwritten slots contribute exact zeros."""
        start = layer * self.spec.layer_bytes
        with span(self.timers, "gather"):
            for source in self._sources:
                rows = self.scratch.chunks(arena, source.dtype, start, source.width)
                torch.index_select(rows, 0, source.index, out=source.out)
                if source.holes is not None:
                    source.slots.index_fill_(0, source.holes, 0.0)
        if self._steps or self._meta is not None:
            with span(self.timers, "dequant"):
                self._dequantise()

    def _dequantise(self) -> None:
        for wide, half in self._meta_copies:
            wide.copy_(half)
        if self._meta is not None and self.batch.dead is not None:
            self._meta.masked_fill_(self.batch.dead, 0.0)
        for step in self._steps:
            if step.kind == "cast":
                step.out.copy_(step.raw)
            elif step.kind == "fp8":
                fp8_bits_to_half(step.raw, step.out)
            else:
                torch.bitwise_and(step.raw, 15, out=step.out[:, 0])
                torch.bitwise_right_shift(step.raw, 4, out=step.out[:, 1])
