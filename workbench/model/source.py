"""What a model file must offer to be converted, whatever its container."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from workbench.errors import ModelError
from workbench.model.arch import ModelArch

LAYER_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Group4Bit:
    """A matrix as stored in groups of 32 four-bit numbers: value = scale * code + minimum.

    `codes` uint8 [out, in] with values 0-15; `scale` and `minimum` fp32 [out, in / 32].
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor


class WeightSource(Protocol):
    """Read access to one model's tensors under common names.

    Names: `embed`, `head`, `final_norm`, and per layer `layers.N.` followed by `attn_norm`, `q`,
    `k`, `v`, `o`, `mlp_norm`, `gate`, `up`, `down`, `q_norm`, `k_norm`, `q_bias`, `k_bias`,
    `v_bias`, `o_bias`. Matrices are [out, in]; q and k rows are in half-rotation RoPE order.
    """

    arch: ModelArch
    name: str
    identity: str

    def has(self, name: str) -> bool:
        """Whether the file holds this tensor."""

    def tensor(self, name: str) -> Tensor:
        """The tensor in fp32; raises ModelError naming it when it is missing."""

    def stored_as(self, name: str) -> str:
        """The stored type: F32, F16, BF16, Q4_0, Q4_1, Q8_0 and so on."""

    def packed(self, name: str) -> Group4Bit | None:
        """The stored 4-bit groups when the type is Q4_0 or Q4_1, else None."""


def tensor_names(arch: ModelArch) -> list[str]:
    """Names of all tensors that a decoder of this architecture is made of."""
    leaves = ["attn_norm", "mlp_norm", *LAYER_MATRICES]
    leaves += ["q_bias", "k_bias", "v_bias"] if arch.attention_bias else []
    leaves += ["o_bias"] if arch.output_bias else []
    leaves += ["q_norm", "k_norm"] if arch.qk_norm else []
    layers = [f"layers.{index}.{leaf}" for index in range(arch.num_layers) for leaf in leaves]
    return ["embed", *([] if arch.tie_embeddings else ["head"]), "final_norm", *layers]


def refuse_unread(where: str, unread: Iterable[str], harmless: re.Pattern[str]) -> None:
    """ModelError if a file holds weights that no tensor of the decoder is made of.

    Without them the model would answer, and wrongly. `harmless` matches what is no weight.
    """
    left = sorted(name for name in unread if not harmless.fullmatch(name))
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ModelError(
            f"{where} holds the tensor {left[0]!r}{more}, which this decoder does not compute "
            "with: choose a plain Llama, Qwen2 or Qwen3 model, all of whose weights are known"
        )


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> Tensor:
    """The tensor, or ModelError when its shape does not fit the architecture."""
    if tuple(tensor.shape) != expected:
        raise ModelError(
            f"tensor {name!r} has shape {tuple(tensor.shape)} but the configuration asks for "
            f"{expected}: the model file is broken or its configuration belongs to another one"
        )
    return tensor


def unpermute_rope(rows: Tensor, num_heads: int) -> Tensor:
    """Rows of q or k from llama.cpp's interleaved RoPE order to the half-rotation order.

    rows [num_heads * head_dim, ...]; the converter of llama.cpp swaps the two axes
    (2, head_dim / 2) of each head for the Llama architecture.
    """
    head_dim = rows.shape[0] // num_heads
    split = rows.reshape(num_heads, head_dim // 2, 2, *rows.shape[1:])
    return split.transpose(1, 2).reshape(rows.shape).contiguous()


def as_float(tensor: Tensor) -> Tensor:
    """The tensor in fp32, contiguous."""
    return tensor.to(torch.float32).contiguous()
