"""Turn a model file into fused tensors of one weight format, ready to be memory-mapped.

Names in the result: `embed`, `head` (absent when tied), `final_norm`, and per layer
`layers.N.` + `attn_norm`, `qkv`, `o`, `mlp_norm`, `gate_up`, `down`, `qk_norm`. A matrix is one
tensor `name.weight` and, by its kind, `name.scale` and `name.bias`; `kinds` tells the kind.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from workbench.errors import ModelError
from workbench.model.arch import ModelArch
from workbench.model.quantize import (
    can_pack_int4,
    can_pack_int8,
    concat_groups,
    int4_groups,
    int8_rows,
)
from workbench.model.source import LAYER_MATRICES, WeightSource, check_shape

_PRECISION = ("int4", "int8", "bf16", "fp32")  # a fused matrix takes its most precise part's kind


@dataclass
class Converted:
    """Tensors of one weight format, the kind of each matrix, and what a user should know."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    stored: dict[str, set[str]] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """One line per stored type that had to become another kind."""
        exact = {"Q4_0": "int4", "Q4_1": "int4", "F32": "fp32", "BF16": "bf16"}
        return [
            f"{stored} kept as {kind}"
            for stored, kinds in sorted(self.stored.items())
            for kind in sorted(kinds)
            if exact.get(stored) != kind
        ]


def convert(source: WeightSource, weight_format: str) -> Converted:
    """All tensors of `source` in `as_stored`, `int8`, `bf16` or `fp32`.

    Raises ModelError naming a tensor that is missing or has the wrong shape.
    """
    arch, result = source.arch, Converted()
    if weight_format == "as_stored" and _all_fp32(source):
        weight_format = "fp32"
    dtype = torch.float32 if weight_format == "fp32" else torch.bfloat16
    table_shape = (arch.vocab_size, arch.hidden_size)
    _add_matrix(source, result, "embed", ["embed"], table_shape, weight_format, table=True)
    if not arch.tie_embeddings:
        _add_matrix(source, result, "head", ["head"], table_shape, weight_format, table=True)
    for index in range(arch.num_layers):
        _add_layer(source, result, f"layers.{index}.", weight_format, dtype)
    norm = check_shape("final_norm", source.tensor("final_norm"), (arch.hidden_size,))
    result.tensors["final_norm"] = norm.to(dtype)
    return result


def kept_types(note: str) -> tuple[str, str]:
    """The stored type and the kind of one of `Converted.notes`."""
    stored, kind = note.split(" kept as ")
    return stored, kind


def _add_layer(
    source: WeightSource, result: Converted, prefix: str, weight_format: str, dtype: torch.dtype
) -> None:
    arch = source.arch
    hidden, inner = arch.hidden_size, arch.intermediate_size
    for fused, parts, shape in (
        ("qkv", ("q", "k", "v"), (arch.q_size + 2 * arch.kv_size, hidden)),
        ("o", ("o",), (hidden, arch.q_size)),
        ("gate_up", ("gate", "up"), (2 * inner, hidden)),
        ("down", ("down",), (hidden, inner)),
    ):
        names = [prefix + part for part in parts]
        _add_matrix(source, result, prefix + fused, names, shape, weight_format)
    for leaf in ("attn_norm", "mlp_norm"):
        norm = check_shape(prefix + leaf, source.tensor(prefix + leaf), (hidden,))
        result.tensors[prefix + leaf] = norm.to(dtype)
    if arch.attention_bias:
        bias = torch.cat([source.tensor(prefix + part) for part in ("q_bias", "k_bias", "v_bias")])
        result.tensors[prefix + "qkv.bias"] = bias.to(dtype)
    if arch.output_bias:
        result.tensors[prefix + "o.bias"] = source.tensor(prefix + "o_bias").to(dtype)
    if arch.qk_norm:
        result.tensors[prefix + "qk_norm"] = _qk_norm(source, arch, prefix).to(dtype)


def _qk_norm(source: WeightSource, arch: ModelArch, prefix: str) -> Tensor:
    """q_norm for each query head over k_norm for each KV head: [Hq + Hkv, head_dim]."""
    rows = []
    for leaf, heads in (("q_norm", arch.num_heads), ("k_norm", arch.num_kv_heads)):
        norm = check_shape(prefix + leaf, source.tensor(prefix + leaf), (arch.head_dim,))
        rows.append(norm.expand(heads, -1))
    return torch.cat(rows)


def _add_matrix(
    source: WeightSource,
    result: Converted,
    name: str,
    parts: list[str],
    shape: tuple[int, int],
    weight_format: str,
    table: bool = False,
) -> None:
    kinds = [_target_kind(source, part, weight_format, table) for part in parts]
    kind = max(kinds, key=_PRECISION.index)
    if kind == "int4" and not can_pack_int4(*shape):
        kind = "int8"
    if kind == "int8" and not can_pack_int8(shape[1]):
        kind = "bf16"
    for part in parts:
        result.stored.setdefault(source.stored_as(part), set()).add(kind)
    result.kinds[name] = kind
    if kind == "int4":
        groups = [source.packed(part) for part in parts]
        whole = concat_groups([group for group in groups if group is not None])
        check_shape(name, whole.codes, shape)
        packed = int4_groups(whole)
    else:
        weight = check_shape(name, torch.cat([source.tensor(part) for part in parts]), shape)
        if kind in ("bf16", "fp32"):
            dtype = torch.float32 if kind == "fp32" else torch.bfloat16
            result.tensors[name + ".weight"] = weight.to(dtype).contiguous()
            return
        packed = int8_rows(weight)
    result.tensors[name + ".weight"] = packed.codes
    result.tensors[name + ".scale"] = packed.scale


def _all_fp32(source: WeightSource) -> bool:
    names = [f"layers.{i}.{leaf}" for i in range(source.arch.num_layers) for leaf in LAYER_MATRICES]
    return all(source.stored_as(name) == "F32" for name in ["embed", *names])


def _target_kind(source: WeightSource, part: str, weight_format: str, table: bool) -> str:
    if weight_format != "as_stored":
        if weight_format not in ("int8", "bf16", "fp32"):
            raise ModelError(f"weight format {weight_format!r} is unknown: use as_stored or bf16")
        return weight_format
    stored = source.stored_as(part)
    if stored in ("F32", "F16", "BF16"):
        return "bf16"
    # A token table is also read row by row, which the 4-bit layout does not allow.
    return "int4" if stored in ("Q4_0", "Q4_1") and not table else "int8"
