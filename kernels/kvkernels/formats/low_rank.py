"""Low rank: each head's vector as its coordinates in a calibrated basis of fewer dimensions.

x = mean + c B, with B [rank, D] of orthonormal rows and c = (x - mean) B^T: for rows that are the
first principal directions this is the best of its rank. Coordinates are fp16, or codes with a scale
and minimum per token and head; B then comes mixed by an orthogonal matrix, which spreads what is
large over all coordinates. Keys come before RoPE, because a rotation that differs by token has no
common subspace. One head a group. Sources: Palu (arXiv 2407.21118), whose whitened factors of the
projection are the principal directions of its outputs; ours are taken from outputs.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvkernels.formats.base import Encoded, Method, PageFormat, Reads, Shared, affine
from kvkernels.formats.packing import pack, unpack

RANK_UNIT = 4  # coordinates share bytes


@dataclass(frozen=True)
class LowRank(PageFormat):
    """Coordinates of `rank` numbers a vector, 0: half its width; table: mean [D], B [rank, D]."""

    reads: Reads = "tile"
    shared: Shared = "table"
    rank: int = 0

    def ranked(self, rank: int) -> PageFormat:
        """The format with that many coordinates."""
        return replace(self, rank=rank)

    def rank_of(self, head_dim: int) -> int:
        """Coordinates of a vector."""
        return self.rank or max(1, head_dim // 2)

    def check(self, head_dim: int, block_size: int) -> None:
        """Raise ValueError where a page of this shape cannot hold the format."""
        rank = self.rank_of(head_dim)
        if rank > head_dim:
            raise ValueError(f"rank {rank} is above the width {head_dim} of a head")
        if rank % RANK_UNIT:
            raise ValueError(f"rank {rank} is no multiple of {RANK_UNIT}")

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of a vector's coordinates."""
        return self.rank_of(head_dim) * self.bits // 8

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """Scale and minimum of the coordinates, where they are codes."""
        return 2 if self.bits < 16 else 0

    def table_size(self, head_dim: int) -> int:
        """Numbers of a layer and head outside the pages."""
        return (1 + self.rank_of(head_dim)) * head_dim

    def neutral_table(self, head_dim: int) -> Tensor:
        """No mean, and the first dimensions as they are."""
        return torch.cat([torch.zeros(1, head_dim), torch.eye(head_dim)])[
            : 1 + self.rank_of(head_dim)
        ].flatten()

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Coordinates; float64, so that they do not depend on how many vectors come at once."""
        table = self._rows(scale, x.shape[-1], x.device).double()  # [..., 1 + rank, D]
        found = _times(x.double() - table[..., 0, :], table[..., 1:, :].mT).to(torch.float32)
        if self.bits == 16:
            return Encoded(found.to(torch.float16).view(torch.uint8))
        codes, own, low = affine(found, 2**self.bits - 1)
        return Encoded(pack(codes, self.bits), torch.stack([own[..., 0], low[..., 0]]))

    def unpack(self, data: Tensor, meta: Tensor | None, scale: Tensor | float) -> Tensor:
        """Mean plus coordinates times the basis."""
        if self.bits == 16:
            found = data.view(torch.float16).to(torch.float32)
        else:
            wide = self.needed(meta).to(torch.float32)[..., None]
            found = torch.addcmul(wide[1], unpack(data, self.bits).to(torch.float32), wide[0])
        rank = found.shape[-1]
        dim = scale.shape[-1] // (1 + rank) if isinstance(scale, Tensor) else 2 * rank
        table = self._rows(scale, dim, data.device)
        return _times(found, table[..., 1:, :]) + table[..., 0, :]

    def _rows(self, scale: Tensor | float, dim: int, device: torch.device) -> Tensor:
        """Mean and basis as rows, [..., S or heads or 1, 1 + rank, D]."""
        table = self.table(scale, dim, device).unflatten(-1, (-1, dim))
        return table if isinstance(scale, Tensor) else table[None]


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """x [..., S, D] times matrix [..., 1, D, R], or x [n, H, D] times one [H, D, R] a head."""
    if matrix.shape[-3] == 1:
        return x @ matrix[..., 0, :, :]
    return torch.einsum("nhd,hdr->nhr", x, matrix).contiguous()


def _method(name: str, bits: int) -> Method:
    dtype = torch.float16 if bits == 16 else torch.uint8
    key = LowRank(name, bits, dtype, pre_rope=True)
    return Method(name, key, LowRank(name, bits, dtype))


LOW_RANK, LOW_RANK_INT4 = _method("lowrank", 16), _method("lowrank_int4", 4)
