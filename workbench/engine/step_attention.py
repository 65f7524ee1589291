"""Attention of one step: writes new keys and values into pages, reads them back, layer by layer."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from kvkernels.api import RopeTable, StepTables, Timers
from torch import Tensor

from workbench.cache.geometry import Geometry
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.rope_mode import RopeMode, kernel_rope
from workbench.cache.step_tables import ClassTables, class_tables
from workbench.clock import Clock
from workbench.engine.mass import join_classes
from workbench.request import Request

SeeQueries = Callable[[int, Tensor], None]  # layer, q [N, Hq, D] as they come


@dataclass
class StepTiming:
    """Where a step's time went, in seconds."""

    forward_s: float = 0.0
    attention_s: float = 0.0
    timers: Timers = field(default_factory=Timers)


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
    ) -> None:
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
        self._plans = [  # of each layer set and page class: its tables and their flat index
            [
                (tables, self._plan(tables))
                for tables in class_tables(manager, requests, layer_set.groups, q_lens, mode)
            ]
            for layer_set in geometry.layer_sets
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention [N, Hq * D] of q [N, Hq, D], with k and v [N, Hkv, D] stored first."""
        begun = self._clock.now_s()
        kernels, store = self._store.kernels, self._store
        layer_set, local = self._geometry.layer_set_of(layer)
        plans = self._plans[layer_set.index]
        if self._see is not None:
            self._see(layer, q)
        if self._wants_norms:
            lengths = torch.linalg.vector_norm(k.float(), dim=-1)
            self.norms[layer_set.index].append(lengths)
        parts = []
        for tables, plan in plans:
            state = store.step_state(layer_set.groups, self._classes[tables.cls])
            kernels.write_kv(store.arena, plan, local, k, v, state)
            result = kernels.attend(
                q,
                store.arena,
                plan,
                local,
                softmax_scale=self._geometry.head_dim**-0.5,
                state=state,
                mass="token" if self._wants_mass else None,
                partial=len(plans) > 1,
                each_head=self._each_head,
            )
            parts.append((tables, result))
        if self._wants_mass:
            joined = join_classes(parts, self._q_lens)
            self.masses[layer_set.index].append(joined)
        self._timing.attention_s += self._clock.now_s() - begun
        return kernels.merge([result for _, result in parts])  # type: ignore[no-any-return]

    def _plan(self, tables: ClassTables) -> object:
        return self._store.kernels.make_plan(
            self._classes[tables.cls],
            StepTables(
                page_offsets=tables.page_offsets,
                kv_lens=tables.kv_lens.astype(np.int32),
                q_lens=self._q_lens,
                new_lens=tables.new_lens,
                log_count=tables.log_count,
                pos=tables.pos,
                query_pos=None if self._mode == "stored" else self._positions.astype(np.int32),
            ),
            self._store.device,
            rope=kernel_rope(self._mode),
            rope_table=self._rope_table,
            scratch=self._store.scratch,
            timers=self._timing.timers,
        )
