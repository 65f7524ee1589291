"""Step tables flattened to rows (request x head group), on the host, for both backends."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from kvkernels.api import Rope, RopeTable, StepTables
from kvkernels.layout import PageSpec

BATCH_COST = 400  # what one more batch costs, in gathered slots (about 60 microseconds)
MAX_BATCHES = 4


def check_tables(tables: StepTables, rope: Rope, table: RopeTable | None, spec: PageSpec) -> None:
    """Raise ValueError when tables disagree with one another or one is missing."""
    groups, requests, pages = tables.page_offsets.shape
    if tables.kv_lens.shape != (groups, requests) or tables.q_lens.shape != (requests,):
        raise ValueError(
            f"step tables disagree: page_offsets {tables.page_offsets.shape}, kv_lens "
            f"{tables.kv_lens.shape}, q_lens {tables.q_lens.shape}"
        )
    known = requests and not isinstance(tables.kv_lens, Tensor)
    if known and int(tables.kv_lens.max()) > pages * spec.block_size:
        raise ValueError(
            f"kv_lens reaches {int(tables.kv_lens.max())} slots, but a request has "
            f"only {pages} pages of {spec.block_size}"
        )
    if rope == "at_read" and (tables.pos is None or table is None):
        raise ValueError('rope="at_read" needs tables.pos and rope_table')


def on_host(tables: StepTables) -> StepTables:
    """The tables as arrays, where a CPU kernel chose the pages."""

    names = ("page_offsets", "kv_lens", "pos", "log_count")
    held = {name: getattr(tables, name) for name in names}
    arrays = {name: x.numpy() for name, x in held.items() if isinstance(x, Tensor)}
    return replace(tables, **arrays)


class HostRows:
    """The tables flattened to rows (request-major), with what each query may see.

    `pages` int64 [rows, P] has no rows where the offsets are on a device; `width` is P. Where the
    lengths are there, `kv` is what they are at most.
    """

    def __init__(self, spec: PageSpec, tables: StepTables) -> None:
        """Read the tables; nothing is copied to a device."""
        shape: tuple[int, int, int] = tuple(tables.page_offsets.shape)  # type: ignore[assignment]
        self.num_groups, self.num_requests, self.width = shape
        self.num_rows = self.num_groups * self.num_requests
        self.pages = np.empty((0, self.width), np.int64)
        if not isinstance(tables.page_offsets, Tensor):
            self.pages = self.flat(tables.page_offsets).astype(np.int64, copy=False)
        if isinstance(tables.kv_lens, Tensor):
            self.kv = np.full(self.num_rows, self.width * spec.block_size, np.int64)
        else:
            self.kv = self.flat(tables.kv_lens).astype(np.int64)  # [rows]
        q_lens = tables.q_lens.astype(np.int64)
        starts = np.cumsum(q_lens) - q_lens
        new = q_lens if tables.new_lens is None else tables.new_lens.astype(np.int64)
        first = np.zeros_like(q_lens) if tables.new_starts is None else tables.new_starts
        self.q_lens, self.starts = q_lens, starts  # [R]
        self.new_lens, self.new_starts = new, first.astype(np.int64)  # [R]
        self.q = np.repeat(q_lens, self.num_groups)  # [rows]

    def flat(self, table: np.ndarray) -> np.ndarray:
        """[num_head_groups, R, ...] to [rows, ...]."""
        return table.swapaxes(0, 1).reshape(self.num_rows, *table.shape[2:])

    def parts(self) -> list[np.ndarray]:
        """Row numbers of each padded batch; rows without stored slots are left out."""
        filled = self.kv > 0
        parts: list[np.ndarray] = []
        for members in (
            np.flatnonzero(filled & (self.q == 1)),
            np.flatnonzero(self.q * filled > 1),
        ):
            if members.size:
                parts += _split(members, self.q[members], self.kv[members], MAX_BATCHES)
        return parts

    def new_slots(self, block_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the step's tokens go: page offset and slot in it [n, groups], query row [n]."""
        new, total = self.new_lens, int(self.new_lens.sum())
        request = np.repeat(np.arange(self.num_requests), new)  # [n]
        nth = np.arange(total) - np.repeat(np.cumsum(new) - new, new)  # [n]
        kv = self.kv.reshape(self.num_requests, self.num_groups)
        slot = kv[request] - new[request][:, None] + nth[:, None]  # [n, groups]
        if not total:
            return np.zeros((0, self.num_groups), np.int64), slot, nth
        table = self.pages.reshape(self.num_requests, self.num_groups, -1)
        page = table[request[:, None], np.arange(self.num_groups), slot // block_size]
        token = self.starts[request] + self.new_starts[request] + nth
        return page, slot % block_size, token


def _split(members: np.ndarray, q: np.ndarray, kv: np.ndarray, limit: int) -> list[np.ndarray]:
    """Cut rows into batches where the padding saved exceeds the cost of one more batch."""
    if limit == 1 or members.size == 1:
        return [members]
    cost = kv * (0.7 + 0.3 * q)
    order = np.argsort(-cost, kind="stable")
    weight = 0.7 + 0.3 * np.maximum.accumulate(q[order])
    left = np.maximum.accumulate(kv[order]) * weight * np.arange(1, members.size + 1)
    back_q = np.maximum.accumulate(q[order][::-1])[::-1]
    back_kv = np.maximum.accumulate(kv[order][::-1])[::-1]
    right = back_kv * (0.7 + 0.3 * back_q) * np.arange(members.size, 0, -1)
    total = left[:-1] + right[1:]
    best = int(np.argmin(total))
    if left[-1] - total[best] < BATCH_COST:
        return [members]
    head, tail = np.sort(order[: best + 1]), np.sort(order[best + 1 :])
    return [
        *_split(members[head], q[head], kv[head], limit // 2),
        *_split(members[tail], q[tail], kv[tail], limit - limit // 2),
    ]
