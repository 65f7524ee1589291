"""Attention mass of a step, from the kernels' results to one table by stored slot."""

import numpy as np
import torch
from kvkernels.api import AttentionResult
from torch import Tensor

from workbench.cache.geometry import Geometry
from workbench.cache.step_tables import ClassTables


def join_classes(parts: list[tuple[ClassTables, AttentionResult]], q_lens: np.ndarray) -> Tensor:
    """Mass fp32 [R, H, T] by slot, from results over one page class each.

    H are KV heads, or query heads where the kernels kept them apart. A class's mass is normalised
    over its own slots, so it is weighed by the class's share of the softmax. That share is a mean
    over the step's query rows and the heads of a KV head, which is exact for one query and one
    head, and close for more.
    """
    if len(parts) == 1:
        return parts[0][1].mass  # type: ignore[return-value]
    num_heads = parts[0][1].mass.shape[1]  # type: ignore[union-attr]
    lse = torch.stack([result.lse for _, result in parts])  # type: ignore[misc]
    share = torch.softmax(lse, 0).nan_to_num_(0.0)  # [C, N, Hq]
    share = share.unflatten(-1, (num_heads, -1)).mean(-1)  # [C, N, H]
    rows = torch.from_numpy(np.repeat(np.arange(len(q_lens)), q_lens)).to(share.device)
    sums = share.new_zeros(len(parts), len(q_lens), num_heads).index_add_(1, rows, share)
    sums /= torch.from_numpy(q_lens).to(share.device)[None, :, None]
    joined: Tensor | None = None
    for (tables, result), weight in zip(parts, sums, strict=True):
        mass: Tensor = result.mass  # type: ignore[assignment]
        pages = torch.as_tensor(tables.pages).to(mass.device)  # [G, R, P]
        size = mass.shape[-1] // pages.shape[-1]
        if joined is None:
            joined = share.new_zeros(len(q_lens), num_heads, _most(parts) * size)
        slots = pages[..., None] * size + torch.arange(size, device=mass.device)
        at = slots.flatten(2).transpose(0, 1)
        at = at.repeat_interleave(num_heads // len(pages), 1)  # [R, H, P * S]
        joined.scatter_add_(-1, at, mass * weight[..., None])
    assert joined is not None
    return joined


def _most(parts: list[tuple[ClassTables, AttentionResult]]) -> int:
    """Pages of the whole table; chosen ones are as wide in each class."""
    pages = [tables.pages for tables, _ in parts]
    return max(x.shape[-1] if isinstance(x, Tensor) else 1 + int(x.max()) for x in pages)  # type: ignore[union-attr]


def by_group(
    geometry: Geometry, masses: list[list[Tensor]], num_heads: int, reduce: str = "mean"
) -> Tensor:
    """Mean over a group's layers and KV heads, fp32 [R, num_groups, T] on the host.

    `masses`: of each layer set, one [R, H, T] a layer, summed over the heads of a KV head or not.
    `reduce`: what the query heads of a KV head become: their mean, max (where they are apart) or
    sum.
    """
    width = max(part.shape[-1] for parts in masses for part in parts)
    joined = torch.zeros(masses[0][0].shape[0], len(geometry.groups), width)
    share = num_heads // geometry.num_kv_heads
    for layer_set, parts in zip(geometry.layer_sets, masses, strict=True):
        if parts[0].shape[1] == num_heads != geometry.num_kv_heads:
            apart = (part.unflatten(1, (-1, share)) for part in parts)
            parts = [part.amax(2) if reduce == "max" else part.sum(2) for part in apart]
        total = torch.stack(parts).sum(0).cpu()  # [R, Hkv, T]
        split = total.unflatten(1, (len(layer_set.groups), -1))
        heads = split.shape[2] * len(parts) * (share if reduce == "mean" else 1)
        joined[:, list(layer_set.groups), : total.shape[-1]] = split.sum(2) / heads
    return joined


def mean_norms(geometry: Geometry, lengths: list[list[Tensor]]) -> np.ndarray:
    """Mean key length over a group's layers and heads, float32 [N, num_groups].

    `lengths`: of each layer set, one [N, Hkv] a layer.
    """
    joined = np.zeros((lengths[0][0].shape[0], len(geometry.groups)), np.float32)
    for layer_set, parts in zip(geometry.layer_sets, lengths, strict=True):
        mean = torch.stack(parts).mean(0).unflatten(1, (len(layer_set.groups), -1)).mean(-1)
        joined[:, list(layer_set.groups)] = mean.cpu().numpy()
    return joined
