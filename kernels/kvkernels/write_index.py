"""Where the new vectors of a step go (CPU path)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvkernels.formats import PageFormat
from kvkernels.layout import META_BYTES, PageSpec
from kvkernels.rows import HostRows


@dataclass(frozen=True)
class WriteIndex:
    """Where new vectors go, as element indices (layer 0), heads of a token together.

    picks: int64 rows of k (then of v, where they share a format) viewed [N * Hkv, D], or None for
        all in order.
    data: one index for K then V where they share a format, else one each; meta: alike, [M, ...].
    """

    picks: Tensor | None
    data: tuple[Tensor, ...]
    meta: tuple[Tensor | None, ...]


def make_write_index(spec: PageSpec, host: HostRows) -> WriteIndex | None:
    """Element index of each new (token, KV head); heads of a token are consecutive."""
    heads, groups = spec.num_kv_heads, host.num_groups
    page, inner, token = host.new_slots(spec.block_size)
    if not token.size:
        return None
    picks = None
    if token.size != int(host.q_lens.sum()):
        every = np.arange(groups * heads)
        picks = torch.from_numpy((token[:, None] * every.size + every).ravel())
    if spec.k.grouped or spec.v.grouped:
        return WriteIndex(None, (), ())  # only whole pages are written, so no token has a place
    head = np.arange(heads)

    def data(fmt: PageFormat, start: int, row: int) -> np.ndarray:
        at = (page + start + inner * row)[..., None] + head * (spec.block_size * row)
        return (at // fmt.dtype.itemsize).ravel()

    def meta(kinds: int, start: int) -> np.ndarray:
        kind = np.arange(kinds)[:, None, None, None]
        at = (page + start)[..., None] // META_BYTES + inner[..., None]
        return (at + (head * kinds + kind) * spec.block_size).reshape(kinds, page.size * heads)

    datas = (
        data(spec.k, 0, spec.k_row_bytes),
        data(spec.v, spec.v_offset, spec.v_row_bytes),
    )
    metas = (meta(spec.k_num_meta, spec.k_meta_offset), meta(spec.v_num_meta, spec.v_meta_offset))
    if spec.k == spec.v:
        if picks is not None:
            picks = torch.cat([picks, picks + int(host.q_lens.sum()) * groups * heads])
        datas, metas = (np.concatenate(datas),), (np.concatenate(metas, -1),)  # type: ignore[assignment]
    return WriteIndex(
        picks,
        tuple(torch.from_numpy(at) for at in datas),
        tuple(torch.from_numpy(at.ravel()) if at.size else None for at in metas),
    )
