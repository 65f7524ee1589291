"""One linear layer per weight format, all with the call `linear(x, residual=None)`.

kind   weight                  kernel on a CPU                          bytes per weight
fp32   fp32 [out, in]          onednn, prepacked once                   4
bf16   bf16 [out, in]          onednn, prepacked once                   2
int8   int8 [out, in] + scale  aten._weight_int8pack_mm                 1
int4   uint8 [out, in / 2]     aten._weight_int4pack_mm_for_cpu         0.625 (groups of 32)
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Linear(Protocol):
    """y = x W^T + b (+ residual): x [N, in] contiguous -> [N, out] in the compute dtype."""

    kind: str
    in_features: int
    out_features: int
    weight_bytes: int

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the layer; `residual` [N, out] is added and left unchanged."""


class GatedLinear(Protocol):
    """silu(x G^T) * (x U^T), the first half of the MLP: x [N, in] -> [N, out]."""

    kind: str
    in_features: int
    out_features: int
    weight_bytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """Apply gate and up projection and their product."""


class DenseLinear:
    """bf16 or fp32 weights through torch's own matmul (GPU, tiny models, no onednn)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.kind = "bf16" if weight.dtype == torch.bfloat16 else "fp32"
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [N, in] -> [N, out]."""
        out = functional.linear(x, self._weight, self._bias)
        return out if residual is None else out.add_(residual)


class PrepackedLinear:
    """bf16 or fp32 weights reordered once for onednn; the residual is added inside the kernel.

    The source weight may be memory-mapped: it is not kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.kind = "bf16" if weight.dtype == torch.bfloat16 else "fp32"
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = bias
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [N, in] -> [N, out]."""
        if residual is None:
            return self._plain(x, self._weight, self._bias, "none", [], "")
        return self._add(x, residual, self._weight, self._bias, "add")


class PrepackedGatedLinear:
    """Gate and up as two onednn matmuls whose epilogues do silu and the product.

    In bf16 about 10 % faster than one fused matmul and two passes over its result, and closer to
    fp32, for the halves are not rounded in between.
    """

    def __init__(self, weight: Tensor) -> None:
        self.kind = "bf16" if weight.dtype == torch.bfloat16 else "fp32"
        self.out_features, self.in_features = weight.shape[0] // 2, weight.shape[1]
        self.weight_bytes = weight.nbytes
        self._gate, self._up = (
            torch.ops.mkldnn._reorder_linear_weight(half.contiguous(), _TYPICAL_ROWS)
            for half in weight.chunk(2)
        )
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._times = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, out]."""
        gate = self._plain(x, self._gate, None, "swish", [], "")
        return self._times(x, gate, self._up, None, "mul")


class FusedGatedLinear:
    """Gate and up as one linear layer of any kind [2 out, in]."""

    def __init__(self, linear: Linear) -> None:
        self.kind = linear.kind
        self.in_features, self.out_features = linear.in_features, linear.out_features // 2
        self.weight_bytes = linear.weight_bytes
        self._linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, out]."""
        gate, up = self._linear(x).chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)


class AutoGatedLinear:
    """`few` up to `max_few_rows` rows, `many` above (see AutoLinear)."""

    kind = "auto"

    def __init__(self, few: GatedLinear, many: GatedLinear, max_few_rows: int) -> None:
        self.in_features, self.out_features = few.in_features, few.out_features
        self.weight_bytes = few.weight_bytes + many.weight_bytes
        self._few = few
        self._many = many
        self._max_few_rows = max_few_rows

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, in] -> [N, out]."""
        return (self._few if x.shape[0] <= self._max_few_rows else self._many)(x)


class Int8Linear:
    """int8 weights [out, in] with one bf16 scale a row; activations and result bf16.

    `codes` must start at a multiple of 64 bytes and `in` be a multiple of 16: torch's kernel
    crashes or errs otherwise (torch 2.13).
    """

    kind = "int8"

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = codes.shape
        self.weight_bytes = codes.nbytes + scale.nbytes + (0 if bias is None else bias.nbytes)
        self._codes = codes
        self._scale = scale
        self._bias = bias
        self._call = torch.ops.aten._weight_int8pack_mm.default

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x bf16 [N, in] -> bf16 [N, out]."""
        # The kernel reads whole vectors from x and crashes when they straddle a boundary.
        x = x.clone() if x.data_ptr() % 64 else x
        return _finish(self._call(x, self._codes, self._scale), self._bias, residual)


class Int4Linear:
    """Packed 4-bit weights in groups of 32 (scale and zero bf16); activations and result bf16."""

    kind = "int4"

    def __init__(self, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = codes.shape[0], codes.shape[1] * 2
        self.weight_bytes = codes.nbytes + scale.nbytes + (0 if bias is None else bias.nbytes)
        self._codes = codes
        self._scale = scale
        self._bias = bias
        self._call = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x bf16 [N, in] -> bf16 [N, out]."""
        return _finish(self._call(x, self._codes, 32, self._scale), self._bias, residual)


class AutoLinear:
    """Two copies of one layer: `few` up to `max_few_rows` rows, `many` above.

    The two round differently, so the result depends on how many rows a step happens to have.
    """

    kind = "auto"

    def __init__(self, few: Linear, many: Linear, max_few_rows: int) -> None:
        self.in_features, self.out_features = few.in_features, few.out_features
        self.weight_bytes = few.weight_bytes + many.weight_bytes
        self._few = few
        self._many = many
        self._max_few_rows = max_few_rows

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [N, in] -> [N, out]."""
        chosen = self._few if x.shape[0] <= self._max_few_rows else self._many
        return chosen(x, residual)


class Embedding:
    """Rows of the token table in the compute dtype: dense, or int8 with one scale a row."""

    def __init__(self, table: Tensor, scale: Tensor | None, dtype: torch.dtype) -> None:
        self.table_bytes = table.nbytes + (0 if scale is None else scale.nbytes)
        self._table = table
        self._scale = scale
        self._dtype = dtype

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids int64 [N] -> [N, hidden]."""
        rows = self._table.index_select(0, token_ids)
        if self._scale is None:
            return rows.to(self._dtype)
        return rows.to(self._dtype) * self._scale.index_select(0, token_ids)[:, None]


def dense_linear(weight: Tensor, bias: Tensor | None, *, prepack: bool) -> Linear:
    """The faster of the two dense layers that this device supports."""
    if prepack and weight.device.type == "cpu" and _onednn_takes(weight.dtype):
        return PrepackedLinear(weight, bias)
    return DenseLinear(weight, bias)


def gated_linear(weight: Tensor) -> GatedLinear:
    """The faster of the two dense gated layers; weight [2 out, in], gate rows first."""
    bf16 = weight.dtype == torch.bfloat16
    if bf16 and weight.device.type == "cpu" and _onednn_takes(weight.dtype):
        return PrepackedGatedLinear(weight)
    return FusedGatedLinear(dense_linear(weight, None, prepack=True))


_TYPICAL_ROWS = 8  # onednn picks its blocking for this many rows; 8 was best from 1 to 32


def _onednn_takes(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _finish(out: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    if bias is not None:
        out = out.add_(bias)
    return out if residual is None else out.add_(residual)
