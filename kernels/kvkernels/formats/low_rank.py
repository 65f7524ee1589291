"""Low rank: each head's vector as its coordinates in a calibrated basis of fewer dimensions.

x = mean + c B, with B [rank, D] of orthonormal rows and c = (x - mean) B^T: for rows that are the
first principal directions this is the best of its rank. Coordinates are fp16, or codes with a scale
and minimum per token and head; B then comes mixed by an orthogonal matrix, which spreads what is
large over all coordinates. Keys come before RoPE, because a rotation that differs by token has no
common subspace. A basis is of one head, or of the vectors of several heads joined (G-LRD). Sources:
Palu (arXiv 2407.21118), whose whitened factors of the projection are the principal directions of
its outputs; ours are taken from outputs.

    heads joined: x = [x0 | x1 | x2], c [rank]   ->   rows of a page: c[: rank/3] .. c[2 rank/3 :]

A page then holds an equal part of the coordinates in each head's row, so that its layout is that of
single heads; with 4 bits each part has a scale and a minimum of its own.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvkernels.formats.base import Encoded, Method, PageFormat, Reads, Shared, affine
from kvkernels.formats.packing import pack, unpack

RANK_UNIT = 4  # coordinates share bytes


@dataclass(frozen=True)
class LowRank(PageFormat):
    """`rank` coordinates of the vectors of `heads` KV heads, 0: half as many as they have numbers.

    Table of each head: mean [D], and B [rank, D], its columns of the basis.
    """

    reads: Reads = "tile"
    shared: Shared = "table"
    rank: int = 0
    heads: int = 1

    def ranked(self, rank: int, heads: int = 1) -> PageFormat:
        """The format with that many coordinates, of the vectors of so many heads."""
        return replace(self, rank=rank, heads=heads)

    def rank_of(self, head_dim: int) -> int:
        """Coordinates of a token's vectors of joined heads."""
        return self.rank or max(1, self.heads * head_dim // 2)

    def check(self, head_dim: int, block_size: int) -> None:
        """Raise ValueError where a page of this shape cannot hold the format."""
        rank = self.rank_of(head_dim)
        if rank > self.heads * head_dim:
            told = "a head" if self.heads == 1 else f"{self.heads} heads"
            raise ValueError(f"rank {rank} is above the width {self.heads * head_dim} of {told}")
        if rank % (RANK_UNIT * self.heads):
            raise ValueError(f"rank {rank} is no multiple of {RANK_UNIT * self.heads}")

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of a head's part of the coordinates."""
        return self.rank_of(head_dim) // self.heads * self.bits // 8

    def num_meta(self, head_dim: int, block_size: int) -> int:
        """Scale and minimum of the coordinates, where they are codes."""
        return 2 if self.bits < 16 else 0

    def table_size(self, head_dim: int) -> int:
        """Numbers of a layer and head outside the pages."""
        return (1 + self.rank_of(head_dim)) * head_dim

    def neutral_table(self, head_dim: int) -> Tensor:
        """No mean, and the first dimensions of each head as they are; one a head that is joined."""
        each = self.rank_of(head_dim) // self.heads
        rows = torch.zeros(self.heads, 1 + self.heads * each, head_dim)
        for head in range(self.heads):
            rows[head, 1 + head * each : 1 + (head + 1) * each] = torch.eye(head_dim)[:each]
        return rows.flatten(1) if self.heads > 1 else rows.flatten()

    def pack(self, x: Tensor, scale: Tensor | float, saturated: Tensor | None) -> Encoded:
        """Coordinates; float64, so that they do not depend on how many vectors come at once."""
        table = self._rows(scale, x.shape[-1], x.device).double()  # [..., 1 + rank, D]
        if self.heads > 1:
            found = self._join(x.double(), table).to(torch.float32)
        else:
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
        rank = found.shape[-1] * self.heads
        dim = scale.shape[-1] // (1 + rank) if isinstance(scale, Tensor) else 2 * rank
        table = self._rows(scale, dim, data.device)
        if self.heads > 1:
            return self._part(found, table)
        return _times(found, table[..., 1:, :]) + table[..., 0, :]

    def _join(self, x: Tensor, table: Tensor) -> Tensor:
        """Each head's part of the coordinates of x [..., H, S, D] or, a table a head, [n, H, D]."""
        if table.shape[-3] != 1:
            return self._join(x[..., None, :], table[..., None, :, :])[..., 0, :]
        own = (x - table[..., 0, :]) @ table[..., 0, 1:, :].mT  # [..., H, S, rank]
        joined = own.unflatten(-3, (-1, self.heads)).sum(-3)  # [..., H / heads, S, rank]
        parts = joined.unflatten(-1, (self.heads, -1)).movedim(-2, -3)
        return parts.flatten(-4, -3).contiguous()

    def _part(self, found: Tensor, table: Tensor) -> Tensor:
        """Vectors of coordinates [..., H, S, rank / heads] or [n, H, rank / heads]."""
        if table.shape[-3] != 1:
            return self._part(found[..., None, :], table[..., None, :, :])[..., 0, :]
        parts = found.unflatten(-3, (-1, self.heads)).movedim(-3, -2)
        joined = parts.flatten(-2)[..., None, :, :]  # [..., H / heads, 1, S, rank]
        basis = table[..., 0, 1:, :].unflatten(-3, (-1, self.heads))
        return (joined @ basis).flatten(-4, -3) + table[..., 0, :]

    def _rows(self, scale: Tensor | float, dim: int, device: torch.device) -> Tensor:
        """Mean and basis as rows, [..., S or heads or 1, 1 + rank, D]."""
        if self.heads > 1 and not isinstance(scale, Tensor):
            raise ValueError(f"{self.name} of {self.heads} heads needs the table of each")
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
