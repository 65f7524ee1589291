"""A basis of one request's keys: the principal directions of what it stored so far, before RoPE.

ShadowKV's way (arXiv 2410.21465), which takes the SVD of the prompt's keys of all heads; here of a
head, or of joined ones, about their mean. Until it is there keys wait as they are. Its tables are
bytes of the request, and go with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from kvkernels.api import FormatState
from kvkernels.formats.low_rank import LowRank
from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.cache.geometry import Geometry
from workbench.structural.compression.calibration import mixing
from workbench.structural.compression.measuring import directions

LEAST_SHARE = 2  # tokens for each number of a basis vector: fewer say little of those to come

KeysOf = Callable[[int], Tensor]  # group -> fp32 [T, L, H, D], before RoPE


def tokens_needed(spec: PageSpec) -> int:
    """Least tokens that a basis for this page class is made of; 0 where its keys have none."""
    return LEAST_SHARE * spec.k.heads * spec.head_dim if isinstance(spec.k, LowRank) else 0


@dataclass(frozen=True)
class SequenceBasis:
    """Tables of a request's keys: fp32 [layers, KV heads of the model, W] of each layer set.

    `first_head` int of each group: where its heads lie among the model's.
    """

    tables: dict[int, Tensor]
    set_of: list[int]
    first_head: list[int]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.untyped_storage().nbytes() for table in self.tables.values())

    def state(self, groups: tuple[int, ...], spec: PageSpec, shared: FormatState) -> FormatState:
        """The shared calibration of a page class, with this basis for K in low rank; views."""
        if not isinstance(spec.k, LowRank) or "k" not in spec.planes:
            return shared
        first = self.first_head[groups[0]]
        heads = slice(first, first + len(groups) * spec.num_kv_heads)
        return replace(shared, k_table=self.tables[self.set_of[groups[0]]][:, heads])


def make_basis(geometry: Geometry, specs: list[PageSpec], keys_of: KeysOf) -> SequenceBasis:
    """The basis of some keys, for the page class of each group in `specs`."""
    set_of, tables = [0] * len(geometry.groups), {}
    for part in geometry.layer_sets:
        for group in part.groups:
            set_of[group] = part.index
        if isinstance(specs[part.groups[0]].k, LowRank):  # groups may store different tokens
            each = [_table(specs[group], keys_of(group)) for group in part.groups]
            tables[part.index] = torch.cat(each, 1)
    return SequenceBasis(tables, set_of, [group.kv_heads[0] for group in geometry.groups])


def _table(spec: PageSpec, keys: Tensor) -> Tensor:
    """Mean and basis of each layer and head of a group, [L, H, W]; keys fp32 [T, L, H, D]."""
    fmt = spec.k
    assert isinstance(fmt, LowRank)
    on_cpu = keys.cpu().transpose(0, 1)  # decompositions of this size are faster there
    joined = on_cpu.unflatten(2, (-1, fmt.heads)).flatten(3)  # [L, T, H / heads, heads * D]
    mean, rows, _ = directions(joined)
    rows = rows[..., : fmt.rank_of(spec.head_dim), :]
    if fmt.bits < 16:
        rows = mixing(rows.shape[-2]) @ rows
    both = torch.cat([mean[..., None, :], rows], -2)  # [L, H / heads, 1 + rank, heads * D]
    parts = both.unflatten(-1, (fmt.heads, -1)).movedim(-2, 2).flatten(1, 2)
    return parts.flatten(-2).contiguous().to(keys.device)
