"""Attention of one step: writes new keys and values into pages, reads them back, layer by layer."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from kvkernels.api import AttentionResult, FormatState, RopeTable, Scratch, StepTables, Timers
from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.cache.geometry import Geometry, LayerSet
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.rope_mode import RopeMode, kernel_rope
from workbench.cache.step_tables import ClassTables, class_tables
from workbench.clock import Clock
from workbench.engine.mass import join_classes
from workbench.engine.part_times import PartTimes
from workbench.engine.read_traffic import ReadTraffic
from workbench.engine.sparse_reads import SparseReads
from workbench.engine.split_reads import SplitPlan, SplitReads
from workbench.request import Request

SeeQueries = Callable[[int, Tensor], None]  # layer, q [N, Hq, D] as they come


@dataclass
class StepTiming:
    """Where a step's time went."""

    forward: PartTimes
    attention: PartTimes
    load_s: float = 0.0  # stood still for what comes up by layers
    timers: Timers = field(default_factory=Timers)
    traffic: ReadTraffic = field(default_factory=ReadTraffic)


class StepAttention:
    """What the decoder calls for each layer of one batch of R requests, N tokens.

    `masses`, `norms`: of each layer set, one tensor a layer, where they are wanted.
    """

    def __init__(
        self,
        geometry: Geometry,
        manager: KVCacheManager,
        store: PageStore,
        clock: Clock,
        timing: StepTiming,
        requests: list[Request],
        q_lens: np.ndarray,
        *,
        wants_mass: bool,
        wants_norms: bool,
        positions: np.ndarray,
        mode: RopeMode = "stored",
        rope_table: RopeTable | None = None,
        each_head: bool = False,
        see: SeeQueries | None = None,
        sparse: SparseReads | None = None,
        split: SplitReads | None = None,
        arrive: Callable[[int], None] | None = None,
    ) -> None:
        self._split, self._arrive = split, arrive
        self._geometry = geometry
        self._classes = manager.pool.classes
        self._store = store
        self._clock = clock
        self._timing = timing
        self._q_lens = q_lens
        self._positions, self._mode, self._rope_table = positions, mode, rope_table
        self._wants_mass, self._wants_norms = wants_mass, wants_norms
        self._each_head, self._see = each_head, see
        self.masses: list[list[Tensor]] = [[] for _ in geometry.layer_sets]
        self.norms: list[list[Tensor]] = [[] for _ in geometry.layer_sets]
        self._states: dict[tuple[int, int, int], FormatState] = {}
        every = np.arange(int(q_lens.sum()))
        self._plans = [  # of each layer set and page class: its tables and their flat index
            [
                (tables, self._plan(tables, q_lens, every))
                for tables in class_tables(manager, requests, layer_set.groups, q_lens, mode)
            ]
            for layer_set in geometry.layer_sets
        ]
        self._sparse = sparse if sparse is not None and sparse.requests else None
        self._rest: list[list[tuple[ClassTables, object]]] = []
        if self._sparse is not None and len(self._sparse.others):
            others, lens = [requests[at] for at in self._sparse.others], q_lens[self._sparse.others]
            self._rest_rows = np.setdiff1d(every, self._sparse.rows)
            self._rest = [
                [
                    (tables, self._plan(tables, lens, self._rest_rows))
                    for tables in class_tables(manager, others, layer_set.groups, lens, mode)
                ]
                for layer_set in geometry.layer_sets
            ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention [N, Hq * D] of q [N, Hq, D], with k and v [N, Hkv, D] stored first."""
        if self._arrive is not None:
            waited_from = self._clock.now_s()
            self._arrive(layer)  # what is read of this layer may still be on its way up
            self._timing.load_s += self._clock.now_s() - waited_from
        self._timing.attention.start()
        kernels, store = self._store.kernels, self._store
        layer_set, local = self._geometry.layer_set_of(layer)
        plans = self._plans[layer_set.index]
        if self._see is not None:
            self._see(layer, q)
        if self._wants_norms:
            lengths = torch.linalg.vector_norm(k.float(), dim=-1)
            self.norms[layer_set.index].append(lengths)
        for tables, plan in plans:
            state = self._state(layer_set, tables)
            target = plan.writes if isinstance(plan, SplitPlan) else plan
            if target is not None:
                kernels.write_kv(store.arena, target, local, k, v, state)
        if self._sparse is not None and self._sparse.applies(layer):
            out, mass = self._mixed(layer_set, local, q, self._sparse)
        else:
            out, mass = self._whole(layer_set, local, q, plans, self._q_lens)
        if mass is not None:
            self.masses[layer_set.index].append(mass)
        self._timing.attention.stop()
        return out

    def _whole(
        self,
        layer_set: LayerSet,
        local: int,
        q: Tensor,
        plans: list[tuple[ClassTables, object]],
        q_lens: np.ndarray,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of requests that read every page, and their mass by slot, where wanted."""
        results = [self._attend(layer_set, local, q, each, len(plans) > 1) for each in plans]
        for tables, _ in plans:
            layer_bytes = self._classes[tables.cls].layer_bytes
            self._timing.traffic.add_whole(tables.num_pages, layer_bytes)
        mass = None
        if self._wants_mass:
            parts = [(tables, result) for (tables, _), result in zip(plans, results, strict=True)]
            mass = join_classes(parts, q_lens)
        return self._store.kernels.merge(results), mass

    def _mixed(
        self, layer_set: LayerSet, local: int, q: Tensor, sparse: SparseReads
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of a step in which some requests read chosen pages, and the mass of all."""

        def run(tables: list[ClassTables], rows: np.ndarray) -> list[AttentionResult]:
            ones = np.ones(len(rows), np.int32)
            part = q[torch.from_numpy(rows).to(q.device)]
            return [
                self._attend(
                    layer_set, local, part, (each, self._plan(each, ones, rows)), len(tables) > 1
                )
                for each in tables
            ]

        results, mass = sparse.attend(
            layer_set, local, q, run, self._timing.traffic, self._positions
        )
        out = q.new_empty(len(q), q.shape[1] * q.shape[2])
        out[torch.from_numpy(sparse.rows).to(q.device)] = self._store.kernels.merge(results)
        if not self._rest:
            return out, mass
        rows = torch.from_numpy(self._rest_rows).to(q.device)
        lens = self._q_lens[sparse.others]
        out[rows], other = self._whole(layer_set, local, q[rows], self._rest[layer_set.index], lens)
        if mass is None or other is None:
            return out, None
        width = max(mass.shape[-1], other.shape[-1])
        joined = mass.new_zeros(len(self._q_lens), mass.shape[1], width)
        joined[sparse.members, :, : mass.shape[-1]] = mass
        joined[sparse.others, :, : other.shape[-1]] = other
        return out, joined

    def _attend(
        self,
        layer_set: LayerSet,
        local: int,
        q: Tensor,
        planned: tuple[ClassTables, object],
        partial: bool,
    ) -> AttentionResult:
        tables, plan = planned
        store = self._store
        arena, state = store.arena, self._state(layer_set, tables)
        if isinstance(plan, SplitPlan):
            arena = plan.read(local, self._timing.traffic)
            plan, local, state = plan.reads, 0, state.of_layer(local)
        return store.kernels.attend(  # type: ignore[no-any-return]
            q,
            arena,
            plan,
            local,
            softmax_scale=self._geometry.head_dim**-0.5,
            state=state,
            mass="token" if self._wants_mass else None,
            partial=partial,
            each_head=self._each_head,
        )

    def _state(self, layer_set: LayerSet, tables: ClassTables) -> FormatState:
        """Calibration of the pages of some tables."""
        key = (layer_set.index, tables.cls, tables.basis)
        if key not in self._states:  # the layers of a set share it
            spec = self._classes[tables.cls]
            self._states[key] = self._store.step_state(layer_set.groups, spec, tables.basis)
        return self._states[key]

    def _plan(self, tables: ClassTables, q_lens: np.ndarray, rows: np.ndarray) -> object:
        spec, split = self._classes[tables.cls], self._split
        covered = split is not None and split.covers(tables.cls)
        writes = None
        if not covered or tables.new_lens is None or tables.new_lens.any():
            writes = self._make_plan(spec, tables, q_lens, rows, self._store.scratch)
        if split is None or not covered:
            return writes
        moved, pages = split.one_layer(tables)
        reads = self._make_plan(spec.one_layer, moved, q_lens, rows, split.scratch)
        return SplitPlan(writes, reads, pages, split)

    def _make_plan(
        self,
        spec: PageSpec,
        tables: ClassTables,
        q_lens: np.ndarray,
        rows: np.ndarray,
        scratch: Scratch,
    ) -> object:
        positions = self._positions[rows].astype(np.int32)
        return self._store.kernels.make_plan(
            spec,
            StepTables(
                page_offsets=tables.page_offsets,
                kv_lens=tables.kv_lens
                if isinstance(tables.kv_lens, Tensor)
                else tables.kv_lens.astype(np.int32),
                q_lens=q_lens,
                new_lens=tables.new_lens,
                new_starts=tables.new_starts,
                log_count=tables.log_count,
                pos=tables.pos,
                query_pos=None if self._mode == "stored" else positions,
            ),
            self._store.device,
            rope=kernel_rope(self._mode),
            rope_table=self._rope_table,
            scratch=scratch,
            timers=self._timing.timers,
        )
