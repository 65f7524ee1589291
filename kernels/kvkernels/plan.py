"""One step's tables turned into flat indices, once, for all layers of a layer set (CPU path).

A *row* is one (request, head group): row = r * num_head_groups + g, so that queries viewed as
[N * num_head_groups, h, G, D] line up with it. Rows become a few padded batches of similar length.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvkernels.api import FormatState, Rope, RopeTable, Scratch, StepTables, Timers
from kvkernels.layout import META_BYTES, PageSpec
from kvkernels.rows import HostRows, check_tables, on_host
from kvkernels.turn import turns
from kvkernels.write_index import WriteIndex, make_write_index


@dataclass(frozen=True)
class Batch:
    """Rows padded to one shape: B rows, Q queries, T slots in P pages.

    planes: int64 [2, B * h * P], where a page's K and V chunks start in layer 0, in elements of
        the plane's type.
    meta: int64 [B * P], start of a page's metadata (K then V) in fp16 elements, or None.
    queries: rows of q viewed [N * num_head_groups, ...], as a slice or int64 [B * Q].
    out_rows, out_picks: where results go and which of the B * Q they are (None = as `queries`).
    rows: int64 [B] row numbers.
    holes: int64, unwritten slot rows of one plane [B * h * P * S], or None.
    tail_holes: as holes; they include the end of the last pages even if every row has T slots.
    bias: fp32 [B * h or B or 1, 1, Q, T] added to scores, or None.
    tail_bias: fp32 [B, 1, W], the same for one query over whole pages, or None; it covers the last
        W of the P * S slots, those before need none.
    blind: bool [B, Q], queries that see nothing, or None. real: fp32 [B, Q], 1 for real queries.
    fresh: every slot is new and no score is weighted, so that plain causality is the whole mask.
    pos: int64 [B, T]; query_pos: int64 [B * Q].
    """

    num_rows: int
    num_queries: int
    num_slots: int
    num_pages: int
    planes: Tensor
    meta: Tensor | None
    queries: slice | Tensor
    out_rows: Tensor | None
    out_picks: Tensor | None
    rows: Tensor
    holes: Tensor | None
    tail_holes: Tensor | None
    bias: Tensor | None
    tail_bias: Tensor | None
    blind: Tensor | None
    real: Tensor | None
    fresh: bool
    pos: Tensor | None
    query_pos: Tensor | None


@dataclass(frozen=True)
class Plan:
    """Everything a step's attention and write need besides q, k, v; shared by all layers."""

    spec: PageSpec
    batches: tuple[Batch, ...]
    write: WriteIndex | None
    num_head_groups: int
    num_requests: int
    num_query_rows: int
    num_pages: int
    covers_all: bool
    scratch: Scratch
    rope: Rope
    rope_table: RopeTable | None
    timers: Timers
    tiled: bool  # K and V are decoded before the products, see `PageFormat.reads`
    turned: tuple[bool, bool]  # queries and results, see `turn`
    readers: dict[Any, Any] = field(default_factory=dict)  # bound buffers of the batches
    _scales: list[Any] = field(default_factory=list)

    def shared_scales(self, state: FormatState) -> tuple[list[float], list[float]]:
        """Scales of K and of V by layer; read once, so a plan made earlier keeps the old ones."""
        if not self._scales or self._scales[0] is not state:
            self._scales[:] = [state, (state.k_scale.tolist(), state.v_scale.tolist())]
        scales: tuple[list[float], list[float]] = self._scales[1]
        return scales


def make_plan(
    spec: PageSpec,
    tables: StepTables,
    device: torch.device | str = "cpu",
    *,
    rope: Rope = "stored",
    scratch: Scratch,
    rope_table: RopeTable | None = None,
    timers: Timers | None = None,
) -> Plan:
    """Build the flat indices of one step.

    `rope_table` = (cos, sin), each fp32 [max_positions, D / 2], rotates dims (i, i + D/2) of K as
    it is read; needed with rope="at_read", together with `tables.pos`.
    Raises ValueError when a table is missing or has the wrong shape.
    """
    check_tables(tables, rope, rope_table, spec)
    tables = on_host(tables)
    host = HostRows(spec, tables)
    batches = tuple(_make_batch(spec, host, part, tables, rope) for part in host.parts())
    covers_all = len(batches) == 1 and batches[0].out_rows is None
    covers_all = covers_all and batches[0].num_rows == host.num_rows
    return Plan(
        spec=spec,
        batches=batches,
        write=make_write_index(spec, host),
        num_head_groups=host.num_groups,
        num_requests=host.num_requests,
        num_query_rows=int(tables.q_lens.sum()),
        num_pages=host.width,
        covers_all=covers_all,
        scratch=scratch,
        rope=rope,
        rope_table=rope_table,
        timers=Timers() if timers is None else timers,
        turned=turns(spec, rope),
        tiled="tile" in (spec.k.reads, spec.v.reads) or (rope == "at_read" and spec.k.rotated),
    )


def _make_batch(
    spec: PageSpec, host: HostRows, part: np.ndarray, tables: StepTables, rope: Rope
) -> Batch:
    kv, q = host.kv[part], host.q[part]
    slots, queries = int(kv.max()), int(q.max())
    num_pages = -(-slots // spec.block_size)
    padded = num_pages * spec.block_size
    pages = host.pages[part, :num_pages]
    pages = np.where(pages < 0, pages[:, :1], pages)  # padding reads a page that exists
    ragged = bool((kv != slots).any())
    empty = np.arange(padded) >= kv[:, None]  # [B, P * S]
    holes = _holes(empty, spec.num_kv_heads) if ragged or padded != slots else None
    query_rows, real = _query_rows(host, part, queries)
    bias, blind = _bias(spec, host, part, slots, queries, tables)
    whole = part.size == host.num_rows
    straight = bool((np.diff(query_rows) == 1).all())
    qpos = tables.query_pos if rope == "at_read" else None
    all_real = bool(real.all())
    return Batch(
        num_rows=part.size,
        num_queries=queries,
        num_slots=slots,
        num_pages=num_pages,
        planes=_plane_indices(spec, pages),
        meta=_meta_index(spec, pages),
        queries=(
            slice(int(query_rows[0]), int(query_rows[-1]) + 1)
            if straight
            else torch.from_numpy(query_rows)
        ),
        out_rows=None if straight and whole else torch.from_numpy(query_rows[real.ravel()]),
        out_picks=None if all_real else torch.from_numpy(np.flatnonzero(real)),
        rows=torch.from_numpy(part),
        holes=holes if ragged else None,
        tail_holes=holes,
        bias=bias,
        tail_bias=_tail_bias(bias, empty) if queries == 1 else None,
        blind=blind,
        fresh=tables.log_count is None
        and bool((kv == host.new_lens[part // host.num_groups]).all())
        and bool((kv == q).all()),
        real=None if all_real else torch.from_numpy(real.astype(np.float32)),
        pos=_positions(host, part, slots, tables) if rope == "at_read" else None,
        query_pos=None
        if qpos is None
        else torch.from_numpy(qpos.astype(np.int64)[query_rows // host.num_groups]),
    )


def _query_rows(host: HostRows, part: np.ndarray, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of q viewed [N * num_head_groups, ...]: [B * Q] int64, and which are real: [B, Q]."""
    request, group = part // host.num_groups, part % host.num_groups
    step = np.arange(queries)
    real = step < host.q[part][:, None]  # [B, Q]
    token = host.starts[request][:, None] + np.minimum(step, host.q[part][:, None] - 1)
    return (token * host.num_groups + group[:, None]).ravel(), real


def _bias(
    spec: PageSpec, host: HostRows, part: np.ndarray, slots: int, queries: int, tables: StepTables
) -> tuple[Tensor | None, Tensor | None]:
    """What is added to scores, [B (* h), 1, Q, T], and the queries that see nothing, [B, Q]."""
    request = part // host.num_groups
    new, first = host.new_lens[request][:, None], host.new_starts[request][:, None]  # [B, 1]
    seen = np.clip(np.arange(queries) + 1 - first, 0, new)  # [B, Q]
    visible = host.kv[part][:, None] - new + seen  # [B, Q]
    bias = None
    if (visible != slots).any():
        hidden = torch.from_numpy(visible)[:, :, None] <= torch.arange(slots)
        bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    if tables.log_count is not None:
        weights = host.flat(tables.log_count)  # type: ignore[arg-type]
        counts = torch.from_numpy(weights[part, None, :slots])
        if bias is None:
            bias = counts.expand(part.size, queries, slots).contiguous()
        else:
            bias += torch.where(torch.isfinite(bias), counts, 0.0)
    blind = torch.from_numpy(visible <= 0) if (visible <= 0).any() else None
    if bias is None:
        return None, blind
    if queries > 1 and part.size > 1:  # prefill runs with rows and KV heads in one axis
        bias = bias.repeat_interleave(spec.num_kv_heads, 0)
    return bias[:, None], blind


def _holes(empty: np.ndarray, heads: int) -> Tensor:
    """Slot rows of one gathered plane [B, h, P * S] that hold nothing."""
    padded = empty.shape[1]
    row, slot = np.nonzero(empty)
    first = row * (heads * padded) + slot
    return torch.from_numpy((first[:, None] + np.arange(heads) * padded).ravel())


def _tail_bias(bias: Tensor | None, empty: np.ndarray) -> Tensor | None:
    """Widen a decode bias [B or 1, 1, 1, T] to whole pages and keep its last columns [B, 1, W]."""
    if bias is None and not empty.any():
        return None
    tail = np.where(empty, np.float32(-np.inf), np.float32(0.0))
    if bias is not None:
        tail[:, : bias.shape[-1]] += bias[:, 0, 0].numpy()
    first = int(np.flatnonzero(tail.any(0))[0]) if tail.any() else tail.shape[1] - 1
    return torch.from_numpy(np.ascontiguousarray(tail[:, None, first:]))


def _positions(host: HostRows, part: np.ndarray, slots: int, tables: StepTables) -> Tensor:
    assert isinstance(tables.pos, np.ndarray)
    pos = host.flat(tables.pos)[part, :slots].astype(np.int64)
    return torch.from_numpy(np.where(np.arange(slots) < host.kv[part][:, None], pos, 0))


def _plane_indices(spec: PageSpec, pages: np.ndarray) -> Tensor:
    """Chunk starts of every (plane, row, head, page)."""
    heads = np.arange(spec.num_kv_heads)[:, None]
    starts = np.empty((2, pages.shape[0], spec.num_kv_heads, pages.shape[1]), np.int64)
    for plane, (fmt, start, row) in enumerate(
        (
            (spec.k, 0, spec.k_row_bytes),
            (spec.v, spec.v_offset, spec.v_row_bytes),
        )
    ):
        at = pages[:, None, :] + start + heads * (spec.block_size * row)  # [B, h, P]
        starts[plane] = at // fmt.dtype.itemsize
    return torch.from_numpy(starts.reshape(2, -1))


def _meta_index(spec: PageSpec, pages: np.ndarray) -> Tensor | None:
    if not spec.k_num_meta + spec.v_num_meta:
        return None
    return torch.from_numpy(((pages + spec.k_meta_offset) // META_BYTES).ravel())
