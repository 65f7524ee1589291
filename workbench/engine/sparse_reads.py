"""Sparse reads of one step: generated tokens read the pages that bounds or landmarks make likely.

Nothing is evicted: it saves bytes read, not bytes stored. A *row* is one query token of a request
that reads sparsely; its newest page and the sinks' are always read, the first layers are read
whole, and so is every token of the prompt. Sources: Quest (arXiv 2406.10774); landmarks, with which
all pages are read that wait in full precision, and those besides that stay so as outliers, or for
which their landmark stands worst, ShadowKV (arXiv 2410.21465).
"""

from collections.abc import Callable

import numpy as np
import torch
from kvkernels.api import AttentionResult, RopeTable
from kvkernels.common import rotate
from torch import Tensor

from workbench.cache.geometry import Geometry, LayerSet
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_bounds import PageBounds
from workbench.cache.step_tables import ClassTables
from workbench.config import RetentionSettings
from workbench.engine.mass import join_classes
from workbench.engine.read_traffic import ReadTraffic
from workbench.engine.sparse_rows import SetRows, make_rows
from workbench.engine.sparse_tables import mass_by_slot, tables_of
from workbench.request import Request

# tables of one query row each, and the rows' numbers in the step -> results, one a table
AttendRows = Callable[[list[ClassTables], np.ndarray], list[AttentionResult]]


class SparseReads:
    """The rows of one step that read sparsely.

    requests: those that do, empty where all is read whole. members, others: int64, which of the
    step's requests they are and are not. rows: int64 [N], their query rows among the step's.
    """

    def __init__(
        self,
        geometry: Geometry,
        manager: KVCacheManager,
        bounds: PageBounds,
        requests: list[Request],
        q_lens: np.ndarray,
        settings: RetentionSettings,
        rope_table: RopeTable | None,
    ) -> None:
        self._manager, self._bounds, self._rope_table = manager, bounds, rope_table
        self._first_layer = settings.sparse_dense_layers
        self._num_first = -(-settings.sink_tokens // manager.block_size)
        bounds.need_layers_from(self._first_layer)
        sets = [part for part in geometry.layer_sets if part.layers[-1] >= self._first_layer]
        self._num_local = manager.roles.residual_pages if bounds.landmarks else 0
        self._least = max(settings.sparse_pages, self._num_first + 1 + self._num_local)
        self._share = settings.sparse_share
        kept = manager.roles.outlier_pages  # exactly, so they are read
        self._num_outliers = max(settings.sparse_outliers, kept) if bounds.landmarks else 0
        chosen = [
            at for at, request in enumerate(requests) if self._skips(request, int(q_lens[at]), sets)
        ]
        self.requests = [requests[at] for at in chosen]
        self.members = np.array(chosen, np.int64)
        self.others = np.setdiff1d(np.arange(len(requests)), chosen)
        counts = q_lens[self.members].astype(np.int64)
        self._of_row = np.repeat(np.arange(len(chosen)), counts)
        self._step_of_row = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = (np.cumsum(q_lens) - q_lens)[self.members]
        self.rows = starts[self._of_row] + self._step_of_row
        self._sets = {
            part.index: make_rows(
                manager, bounds, part, self.requests, self._of_row, self._step_of_row,
                first_layer=self._first_layer, wanted=self._wanted, rope_table=rope_table,
            )
            for part in sets
            if chosen
        }  # fmt: skip

    def applies(self, layer: int) -> bool:
        """Whether any row of this layer reads sparsely."""
        return bool(self.requests) and layer >= self._first_layer

    def _skips(self, request: Request, count: int, sets: list[LayerSet]) -> bool:
        """Whether any of a request's rows leaves out a page."""
        last = request.num_computed_tokens + count - 1
        groups = [group for layer_set in sets for group in layer_set.groups]
        if last < request.num_prompt_tokens or not groups:
            return False
        stored = self._manager.requests[request.request_id].stored_len[groups]
        pages = -(-(stored.max(keepdims=True) + count) // self._manager.block_size)
        return bool((self._wanted(pages) < pages).any())

    def _wanted(self, pages: np.ndarray) -> np.ndarray:
        """Pages that rows read of the `pages` they see, int alike; the newest is one of them."""
        share = np.ceil(self._share * pages).astype(np.int64)
        wanted: np.ndarray = np.maximum(share, self._least) + self._num_outliers
        wanted = np.minimum(pages, wanted)
        return wanted

    def attend(
        self,
        layer_set: LayerSet,
        local: int,
        q: Tensor,
        run: AttendRows,
        traffic: ReadTraffic,
        positions: np.ndarray,
    ) -> tuple[list[AttentionResult], Tensor | None]:
        """Results of the rows, one a page class, and their mass [R, H, T] by stored slot, if any.

        q [n, Hq, D] of the whole step; the step's keys of this layer are written. positions int
        [n], of the queries, where they come before RoPE.
        """
        rows = self._sets[layer_set.index]
        for group, blocks, pos in rows.filled:  # full since this layer's write
            at = range(local, local + 1)
            self._bounds.make(group, blocks, at, pos=pos, rope_table=self._rope_table, keep=False)
        picked = self._choose(rows, local, q[torch.from_numpy(self.rows).to(q.device)], positions)
        tables = tables_of(rows, picked, self._manager.block_size)
        self._count(rows, layer_set, tables, traffic)
        results = run(tables, self.rows)
        mass = None
        if results[0].mass is not None:
            parts = list(zip(tables, results, strict=True))
            joined = join_classes(parts, np.ones(len(self.rows), np.int32))
            mass = mass_by_slot(rows, picked, joined, self._of_row, len(self.requests))
        return results, mass

    def _choose(self, rows: SetRows, local: int, q: Tensor, positions: np.ndarray) -> Tensor:
        """Pages that each row reads, int64 [G, N, K] ascending, -1 behind them; on the device."""
        bounds, kernels, at_rows = self._bounds.tensor, self._bounds.kernels, rows.bound_rows
        if self._rope_table is not None:
            at = torch.from_numpy(positions[self.rows]).to(q.device)
            q = rotate(q.to(torch.float32), *(part[at][:, None] for part in self._rope_table))
        pages = torch.arange(at_rows.shape[-1], device=q.device)
        always = pages >= rows.last[..., None] - self._num_local
        if self._num_outliers and (cosines := self._bounds.cosines) is not None:
            others = at_rows.masked_fill(always | (pages < self._num_first), -1)
            kept = self._kept(rows)
            outliers = kernels.outlier_pages(cosines, local, others, self._num_outliers, kept)
            at_rows, always = at_rows.masked_fill(outliers, -1), always | outliers
        scores = kernels.score_pages(q, bounds, local, at_rows).masked_fill_(always, float("inf"))
        picked: Tensor = kernels.select_pages(
            scores, rows.last, rows.num_read, self._num_first, rows.most
        )
        return picked

    def _kept(self, rows: SetRows) -> Tensor | None:
        """Pages that are not sealed, bool [G, N, P]; None where none stays as an outlier."""
        roles = self._manager.roles
        if not roles.outlier_pages or not roles.seals:
            return None
        classes = self._manager.pool.page_classes(rows.table)
        return torch.from_numpy(np.isin(classes, roles.open)).to(rows.bound_rows.device)

    def _count(
        self,
        rows: SetRows,
        layer_set: LayerSet,
        tables: list[ClassTables],
        traffic: ReadTraffic,
    ) -> None:
        """Traffic of one layer; what was skipped counts as of the class of full pages."""
        classes = self._manager.pool.classes
        traffic.num_rows = len(self.rows)
        for each in tables:
            if len(tables) == 1:
                traffic.add(int(rows.counts.sum()), 0, classes[each.cls].layer_bytes)
            else:
                traffic.add_later((each.page_offsets >= 0).sum(), classes[each.cls].layer_bytes)
        final = classes[self._manager.classes[layer_set.groups[0]]]
        traffic.add(0, int((rows.pages - rows.counts).sum()), final.layer_bytes)
        num_bounds = int((rows.pages - 1).sum())
        traffic.bounds_bytes += num_bounds * self._bounds.page_bytes(layer_set.groups[0])
