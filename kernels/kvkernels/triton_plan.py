"""One step's tables on the GPU: rows, tiles and splits, shared by all layers of a layer set."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvkernels.api import Rope, RopeTable, Scratch, StepTables, Timers
from kvkernels.layout import PageSpec
from kvkernels.rows import HostRows, check_tables
from kvkernels.triton_formats import check_twins

SMALL_TILE = 16  # query rows of a decode program
MIN_SPLIT = 128  # slots of a split at least
TARGET_PROGRAMS = 4 * 132  # about four waves' worth on a large GPU
MAX_SPLITS = 64


@dataclass(frozen=True)
class Plan:
    """Device tables of one step.

    pages int64 [rows, P]; rows int32 [rows, 6] (see `triton_attention`); write_pages int64 and
    write_slots int32 [new tokens * groups], write_tokens int32; log_count and pos as in the tables
    but [rows, P * S]. Tiles depend on the number of query heads and are cut at the first attend.
    """

    spec: PageSpec
    tables: StepTables
    pages: Tensor
    rows: Tensor
    write_pages: Tensor
    write_slots: Tensor
    write_tokens: Tensor
    log_count: Tensor | None
    pos: Tensor | None
    query_pos: Tensor | None
    num_head_groups: int
    num_requests: int
    num_query_rows: int
    num_pages: int
    scratch: Scratch
    rope: Rope
    rope_table: RopeTable | None
    num_splits: int | None
    tiles: dict[tuple[int, int], "Tiles"]


@dataclass(frozen=True)
class Tiles:
    """Work lists int32 [W, 2] (row, first query row) of both tile sizes, and the decode splits."""

    small: Tensor
    large: Tensor
    small_queries: Tensor  # int32, rows of q viewed [N * groups] that small tiles cover
    num_splits: int
    split_slots: int
    longest: int


def make_plan(
    spec: PageSpec,
    tables: StepTables,
    device: torch.device | str = "cuda",
    *,
    rope: Rope = "stored",
    scratch: Scratch,
    rope_table: RopeTable | None = None,
    timers: Timers | None = None,
    num_splits: int | None = None,
) -> Plan:
    """Copy one step's tables to the device; same meaning as `plan.make_plan`.

    `num_splits` fixes the decode splits (default: chosen so that the GPU is full); `timers` is
    accepted for the common signature and stays zero, since launches return before they run.
    """
    check_twins(spec, rope)
    check_tables(tables, rope, rope_table, spec)
    host = HostRows(spec, tables)
    write_pages, write_slots, write_tokens = host.new_slots(spec.block_size)
    pages, pos, log_count = _there(host, tables, rope)
    longs = _to_device(device, np.maximum(host.pages, 0), write_pages)
    ints = [_row_table(host), write_slots, write_tokens]
    if rope == "at_read" and isinstance(tables.pos, np.ndarray):
        ints.append(host.flat(tables.pos))
    ints_on = _to_device(device, *[x.astype(np.int32) for x in ints])
    query_pos = None
    if isinstance(tables.kv_lens, Tensor):
        ints_on[0][:, 2] = tables.kv_lens.transpose(0, 1).reshape(-1)
    if isinstance(tables.log_count, np.ndarray):
        log_count = _to_device(device, host.flat(tables.log_count).astype(np.float32))[0]
    if rope == "at_read" and tables.query_pos is not None:
        query_pos = _to_device(device, tables.query_pos.astype(np.int64))[0]
    return Plan(
        spec=spec,
        tables=tables,
        pages=longs[0] if pages is None else pages,
        rows=ints_on[0],
        write_pages=longs[1],
        write_slots=ints_on[1],
        write_tokens=ints_on[2],
        log_count=log_count,
        pos=ints_on[3] if len(ints_on) > 3 else pos,
        query_pos=query_pos,
        num_head_groups=host.num_groups,
        num_requests=host.num_requests,
        num_query_rows=int(tables.q_lens.sum()),
        num_pages=host.width,
        scratch=scratch,
        rope=rope,
        rope_table=rope_table,
        num_splits=num_splits,
        tiles={},
    )


def _there(
    host: HostRows, tables: StepTables, rope: Rope
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Offsets, positions and log counts by row where a kernel chose the pages, else None each."""

    def rows(table: object, dtype: torch.dtype) -> Tensor | None:
        if not isinstance(table, Tensor):
            return None
        return table.transpose(0, 1).reshape(host.num_rows, -1).to(dtype)

    pages = rows(tables.page_offsets, torch.int64)
    pos = rows(tables.pos, torch.int32) if rope == "at_read" else None
    pages = None if pages is None else pages.clamp(min=0)
    return pages, pos, rows(tables.log_count, torch.float32)


def _row_table(host: HostRows) -> np.ndarray:
    """Six numbers a row, see `triton_attention`."""
    request, group = np.divmod(np.arange(host.num_rows), host.num_groups)
    news = host.new_lens[request], host.new_starts[request]
    return np.stack([host.starts[request], host.q, host.kv, *news, group], 1)


def cut_tiles(plan: Plan, share: int, large: int) -> Tiles:
    """Cut the query rows (queries x `share` query heads of a KV head) into tiles, once a step.

    Rows that fit one decode tile go there; the others into prefill tiles of `large` rows.
    """
    known = plan.tiles.get((share, large))
    if known is not None:
        return known
    host = HostRows(plan.spec, plan.tables)
    small = host.q * share <= SMALL_TILE
    lists = []
    for members, size in (
        (np.flatnonzero(small), SMALL_TILE),
        (np.flatnonzero(~small), large),
    ):
        counts = -(-host.q[members] * share // size)
        row = np.repeat(members, counts)
        nth = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
        lists.append(np.stack([row, nth * size], 1).astype(np.int32))
    rows = np.flatnonzero(small)
    q = host.q[rows]
    nth = np.arange(int(q.sum())) - np.repeat(np.cumsum(q) - q, q)
    request, group = np.divmod(np.repeat(rows, q), host.num_groups)
    queries = (host.starts[request] + nth) * host.num_groups + group
    longest = int(host.kv[rows].max()) if rows.size else 0
    splits = plan.num_splits or _choose_splits(longest, rows.size * plan.spec.num_kv_heads)
    split_slots = -(-max(longest, 1) // splits)
    split_slots = -(-split_slots // 64) * 64
    device = plan.pages.device
    on = _to_device(device, lists[0], lists[1], queries.astype(np.int32))
    splits = max(1, -(-longest // split_slots))
    tiles = Tiles(on[0], on[1], on[2], splits, split_slots, int(host.kv.max(initial=0)))
    plan.tiles[share, large] = tiles
    return tiles


def _choose_splits(longest: int, programs: int) -> int:
    """Enough splits to fill the GPU, none shorter than MIN_SPLIT."""
    wanted = -(-TARGET_PROGRAMS // max(programs, 1))
    return max(1, min(wanted, longest // MIN_SPLIT, MAX_SPLITS))


def _to_device(device: torch.device | str, *arrays: np.ndarray) -> list[Tensor]:
    """Move arrays of one dtype in one transfer; returns views of their shapes."""
    flat = torch.from_numpy(np.concatenate([x.ravel() for x in arrays])).to(device)
    parts = flat.split([x.size for x in arrays])
    return [part.view(x.shape) for part, x in zip(parts, arrays, strict=True)]
