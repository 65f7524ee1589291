"""Pages of a batch decoded number by number, for formats whose scales do not fold around a product.

Scales along channels, codebooks and blocks differ inside a vector; K and V are decoded to fp32 in
the basis they are stored in (rotation at read needs their own), then become one dense operand.
"""

from time import perf_counter

import torch
from torch import Tensor

from kvkernels.api import FormatState
from kvkernels.plan import Batch, Plan
from kvkernels.readers import Operand


class TileReader:
    """Reads K and V of a whole batch; `key` and `value` are valid until the next read."""

    def __init__(self, plan: Plan, batch: Batch, dtype: torch.dtype) -> None:
        """Bind buffers; `dtype` is the product type. T is `batch.num_slots`."""
        spec, scratch = plan.spec, plan.scratch
        self._spec, self._timers, self._scratch = spec, plan.timers, scratch
        self._num_groups = plan.num_head_groups
        self._own_basis = plan.rope == "at_read"
        self._batch, self._holes = batch, batch.holes
        rows, heads, pages = batch.num_rows, spec.num_kv_heads, batch.num_pages
        self._lead = (rows, heads, pages, spec.block_size)
        self._meta_width = heads * spec.block_size * (spec.k_num_meta + spec.v_num_meta)
        self._meta = None
        if batch.meta is not None:
            shape = (batch.meta.numel(), self._meta_width)
            self._meta = scratch.get("meta", shape, torch.float16)
        size = (rows * heads, pages * spec.block_size, spec.head_dim)
        self._planes = [scratch.get(f"decoded.{name}", size, dtype) for name in ("k", "v")]
        self.key, self.value = (Operand(x[None, :, : batch.num_slots]) for x in self._planes)

    def read(self, arena: Tensor, layer: int, state: FormatState) -> None:
        """Fill the operands with one layer's K and V; unwritten slots contribute exact zeros."""
        spec, batch = self._spec, self._batch
        start = layer * spec.layer_bytes
        begun = perf_counter()
        if self._meta is not None and batch.meta is not None:
            rows = self._scratch.chunks(arena, torch.float16, start, self._meta_width)
            torch.index_select(rows, 0, batch.meta, out=self._meta)
        self._timers.gather_s += perf_counter() - begun
        at = spec.num_kv_heads * spec.k_num_meta  # where V's metadata begins, in [..., S] rows
        self._decode(arena, start, 0, (0, at), self._tables("k", layer, state))
        end = at + spec.num_kv_heads * spec.v_num_meta
        self._decode(arena, start, 1, (at, end), self._tables("v", layer, state))

    def _tables(self, plane: str, layer: int, state: FormatState) -> Tensor | float:
        """The calibration table of each row's heads, [B, h, 1, W]; 1.0 where there is none."""
        if (self._spec.k if plane == "k" else self._spec.v).shared != "table":
            return 1.0
        heads = self._num_groups * self._spec.num_kv_heads
        table = state.head_table(plane, layer, heads).unflatten(0, (self._num_groups, -1))
        return table[self._batch.rows % self._num_groups][:, :, None]

    def _decode(
        self,
        arena: Tensor,
        start: int,
        number: int,
        meta: tuple[int, int],
        table: Tensor | float,
    ) -> None:
        """Gather and decode one plane."""
        fmt = self._spec.k if number == 0 else self._spec.v
        rows, heads, pages, slots = self._lead
        row = fmt.row_bytes(self._spec.head_dim)
        begun = perf_counter()
        width = slots * row // fmt.dtype.itemsize
        index = self._batch.planes[number]
        raw = self._scratch.get("tile.raw", (index.numel(), width), fmt.dtype)
        chunks = self._scratch.chunks(arena, fmt.dtype, start, width)
        torch.index_select(chunks, 0, index, out=raw)
        gathered = perf_counter()
        self._timers.gather_s += gathered - begun
        numbers = None
        if meta[0] != meta[1]:
            assert self._meta is not None
            numbers = self._meta.view(rows, pages, -1, slots)[:, :, meta[0] : meta[1]]
            numbers = numbers.unflatten(2, (heads, -1)).permute(3, 0, 2, 1, 4)  # [M, B, h, P, S]
        data = raw.view(torch.uint8).view(*self._lead, row)
        read = fmt.decode if self._own_basis and number == 0 else fmt.unpack
        if isinstance(table, Tensor):  # the tokens of a head share it: one axis for all of them
            data = data.flatten(2, 3)
            numbers = None if numbers is None else numbers.flatten(3)
        values = read(data, numbers, table).reshape(-1, self._spec.head_dim)
        if self._holes is not None:
            values.index_fill_(0, self._holes, 0.0)
        plane = self._planes[number]
        plane.copy_(values.view(plane.shape))
        self._timers.dequant_s += perf_counter() - gathered
