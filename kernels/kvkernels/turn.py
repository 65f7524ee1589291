"""What folds into queries and results instead of K and V: rotations, a scale a head.

Attention in the basis of stored keys is attention of turned queries, (H q) . (H k) = q . k, and a
mean of rotated values is the rotated mean. Both happen once a layer, whatever the context.
"""

import torch
from torch import Tensor

from kvkernels.api import FormatState, Rope
from kvkernels.formats.rotation import hadamard_matrix
from kvkernels.layout import PageSpec


def turns(spec: PageSpec, rope: Rope) -> tuple[bool, bool]:
    """Whether queries, and whether results, have to be turned.

    With rotation at read, keys are decoded to their own basis, so that queries stay in it.
    """
    query = (spec.k.rotated and rope == "stored") or spec.k.shared == "head"
    return query, spec.v.rotated or spec.v.shared == "head"


def turn_query(q: Tensor, spec: PageSpec, layer: int, state: FormatState, rope: Rope) -> Tensor:
    """Turn q [N, Hq, D] for the K plane; fp32, for rounding twice would cost accuracy."""
    return _turn(q, spec.k.rotated and rope == "stored", _scale(q, spec, layer, state, "k"))


def turn_output(out: Tensor, spec: PageSpec, layer: int, state: FormatState) -> Tensor:
    """Turn results [N, Hq, D] of the V plane back; fp32."""
    return _turn(out, spec.v.rotated, _scale(out, spec, layer, state, "v"))


def _turn(x: Tensor, rotated: bool, scale: Tensor | None) -> Tensor:
    x = x.to(torch.float32)
    if rotated:
        x = x @ hadamard_matrix(x.shape[-1], x.device)
    return x if scale is None else x * scale


def _scale(x: Tensor, spec: PageSpec, layer: int, state: FormatState, plane: str) -> Tensor | None:
    """The scale of each query head's KV head, [Hq, 1] or [1], where the plane has one."""
    if (spec.k if plane == "k" else spec.v).shared != "head":
        return None
    scale = (state.k_head_scale if plane == "k" else state.v_head_scale)[layer]
    if x.shape[1] % scale.numel():
        raise ValueError(
            f"{plane}_head_scale has {scale.numel()} heads, which do not divide "
            f"{x.shape[1]} query heads"
        )
    return scale.repeat_interleave(x.shape[1] // scale.numel())[:, None]
