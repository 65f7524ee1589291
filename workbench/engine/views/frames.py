"""Builds frames and snapshots: everything a viewer sees, copied out of the engine's owners."""

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from kvkernels.layout import PageSpec

from workbench.cache.contiguous import free_positions
from workbench.config import EngineConfig, all_settings, get_setting
from workbench.engine.metrics import Metrics, share
from workbench.engine.views import request_views
from workbench.engine.views.cells import HbmCells, Planes, hbm_cells
from workbench.engine.views.hardware import Hardware
from workbench.engine.views.ledger import ledger, slab_waste_bytes
from workbench.engine.views.rates import Rates
from workbench.engine.views.rung_policies import rung_policies
from workbench.engine.views.tier_grids import TierGrids
from workbench.engine.views.tier_report import medium_name
from workbench.engine.views.token_blocks import token_blocks
from workbench.snapshot import NO_OWNER, Snapshot, TierGrid, encode_frame
from workbench.spatial.hierarchy.counters import TierStats
from workbench.views import LedgerLine, Number, PageClassView, TierView

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

NUM_EVENTS = 60
ALWAYS_SHOWN = ("G2", "G3")  # those below have a row while they are on
LEDGER_EVERY = 5  # frames


class FrameBuilder:
    """Keeps what frames need from one to the next: cells of tiers, rates, the last ledger."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.tiers = TierGrids(engine)
        self._rates = Rates(engine.clock)
        self._hardware = Hardware(engine.clock)
        self._ledger: tuple[list[LedgerLine], int] = ([], 0)
        self._num_built = 0
        self._shown_config: EngineConfig | None = None
        self._shown_settings: dict[str, Any] = {}

    def frame(self, seq: int, *, state: str, speed: float, detail: str) -> bytes:
        """One binary frame."""
        hbm = hbm_cells(self._engine.stack.pool, self._shown_class())
        snapshot, cells = self._build(hbm, seq, state, speed, detail)
        tables = request_views.tables(self._engine, hbm)
        found = token_blocks(self._engine, hbm)
        if found is None:
            return encode_frame(snapshot, cells, tables)
        groups, blocks = found
        return encode_frame(msgspec.structs.replace(snapshot, groups=groups), cells, tables, blocks)

    def snapshot(self, seq: int, *, state: str, speed: float, detail: str) -> Snapshot:
        """The structure alone."""
        hbm = hbm_cells(self._engine.stack.pool, self._shown_class())
        return self._build(hbm, seq, state, speed, detail)[0]

    def _shown_class(self) -> int:
        return self._engine.stack.manager.classes[0]

    def _build(
        self, hbm: HbmCells, seq: int, state: str, speed: float, detail: str
    ) -> tuple[Snapshot, list[Planes]]:
        engine, decoder = self._engine, self._engine.model.decoder
        if self._num_built % LEDGER_EVERY == 0:
            self._ledger = ledger(engine)
        self._num_built += 1
        grids, cells, tiers = self._tiers(hbm)
        snapshot = Snapshot(
            seq=seq,
            step=engine.num_steps,
            time_s=engine.clock.now_s(),
            state=state,
            state_detail=detail,
            speed=speed,
            config_version=engine.config_version,
            settings=self._settings(),
            device=engine.device,
            stands_in=engine.device == "cpu",
            backend="triton" if engine.device == "cuda" else "torch",
            model_name=engine.model.name,
            weight_format=decoder.weight_format,
            weight_bytes=decoder.weight_bytes,
            weight_notes=list(engine.model.notes),
            block_size=engine.config.cache.block_size,
            owner_labels={
                str(request.owner): request.request_id
                for request in engine.requests.values()
                if request.owner != NO_OWNER
            },
            classes=_classes(self.tiers.specs),
            grid=grids,
            tiers=tiers,
            requests=request_views.views(engine),
            num_waiting=len(engine.scheduler.waiting),
            num_running=len(engine.scheduler.running),
            numbers=self._numbers(engine.metrics),
            last_step=engine.recorder.last,
            ledger=self._ledger[0],
            rss_bytes=self._ledger[1],
            shadow=engine.shadow.view() if engine.shadow else None,
            integrity=engine.last_integrity,
            hardware=self._hardware.numbers(),
            events=engine.log.since(0, NUM_EVENTS),
            sentence=engine.log.sentence,
            last_apply=engine.last_apply,
        )
        return snapshot, cells

    def _tiers(self, hbm: HbmCells) -> tuple[list[TierGrid], list[Planes], list[TierView]]:
        """Layout, cells and view of HBM and of each tier below that has a row."""
        slab_bytes = self._engine.stack.pool.slab_bytes
        grids = [
            TierGrid(name="G1", num_cells=len(hbm.ids), slab_bytes=slab_bytes, slabs=hbm.slabs)
        ]
        cells, tiers = [hbm.planes], [self._hbm_tier(hbm)]
        for stats in self._engine.hierarchy.stats().tiers:
            if stats.on or stats.name in ALWAYS_SHOWN:
                grid, planes = self.tiers.grid(stats)
                grids.append(grid)
                cells.append(planes)
                tiers.append(self._tier_view(stats))
        return grids, cells, tiers

    def _settings(self) -> dict[str, Any]:
        config = self._engine.config
        if self._shown_config is not config:
            self._shown_config = config
            self._shown_settings = {path: get_setting(config, path) for path in all_settings()}
        return self._shown_settings

    def _hbm_tier(self, hbm: HbmCells) -> TierView:
        engine = self._engine
        pool = engine.stack.pool
        state = hbm.planes["state"] & 7
        per_slab = np.array([spec.page_bytes for spec in pool.classes])
        sizes = np.repeat(per_slab[[cls for cls, _ in hbm.slabs]], [n for _, n in hbm.slabs])
        by_state = np.bincount(state, weights=sizes, minlength=3)
        cached, used = int(by_state[1]), int(by_state[2])
        flows = engine.hierarchy.mover.flows
        loaded, stored = flows.into("G1"), flows.out_of("G1")
        capacity = pool.num_slabs * pool.slab_bytes
        return TierView(
            name="G1",
            medium="HBM" if engine.device == "cuda" else "HBM (CPU memory stands in)",
            enabled=True,
            capacity_bytes=capacity,
            used_bytes=used,
            cached_bytes=cached,
            free_bytes=capacity - used - cached,
            pinned_bytes=int(sizes[pool.pins[hbm.ids] > 0].sum()),
            in_bytes_per_s=self._rates.per_s("G1.in", loaded),
            out_bytes_per_s=self._rates.per_s("G1.out", stored),
            in_bytes_total=loaded,
            out_bytes_total=stored,
            num_entries=int((state > 0).sum()),
            hits=engine.metrics.hit_tokens,
            misses=engine.metrics.prompt_tokens - engine.metrics.hit_tokens,
            faults=0,
            provenance="measured",
            policies=rung_policies(engine, "G1"),
        )

    def _tier_view(self, stats: TierStats) -> TierView:
        cached = self.tiers.cells[stats.name].evictable_bytes if stats.on else 0
        return TierView(
            name=stats.name,
            medium=medium_name(stats),
            enabled=stats.on,
            capacity_bytes=stats.capacity_bytes,
            used_bytes=stats.used_bytes - cached,
            cached_bytes=cached,
            free_bytes=max(0, stats.capacity_bytes - stats.used_bytes),
            pinned_bytes=stats.pinned_bytes,
            in_bytes_per_s=self._rates.per_s(stats.name + ".in", stats.stored_bytes),
            out_bytes_per_s=self._rates.per_s(stats.name + ".out", stats.loaded_bytes),
            in_bytes_total=stats.stored_bytes,
            out_bytes_total=stats.loaded_bytes,
            num_entries=stats.num_entries,
            hits=stats.num_hits,
            misses=stats.num_misses,
            faults=sum(stats.faults.values()),
            provenance=stats.provenance,
            note=f"{stats.throttle_mb_s:g} MB/s" if stats.throttle_mb_s else "",
            failed=stats.failed,
            num_failed=stats.num_failed,
            policies=rung_policies(self._engine, stats.name),
        )

    def _numbers(self, metrics: Metrics) -> dict[str, Number]:
        engine = self._engine
        numbers = metrics.numbers()
        manager, pool = engine.stack.manager, engine.stack.pool
        stored = sum(int(blocks.stored_len[0]) for blocks in manager.requests.values())
        slots = manager.block_size * sum(
            int(blocks.num_pages[0]) for blocks in manager.requests.values()
        )
        numbers["internal_waste"] = share(slots - stored, slots, "no request holds pages")
        numbers["external_waste"] = self._external_waste()
        waste = slab_waste_bytes(pool)
        numbers["slab_waste"] = share(waste, pool.num_slabs * pool.slab_bytes, "no slab")
        numbers["num_evictions"] = Number(value=pool.num_evicted_rows, unit="")
        numbers["saturated"] = Number(value=engine.stack.store.num_saturated, unit="elements")
        counters = engine.fetcher.counters
        if counters.last_load_s and counters.last_recompute_s:
            numbers["load_vs_recompute"] = Number(
                value=counters.last_load_s / counters.last_recompute_s, unit="x"
            )
        else:
            numbers["load_vs_recompute"] = Number(
                value=None, unit="x", why="nothing was fetched yet"
            )
        return numbers

    def _external_waste(self) -> Number:
        manager, pool = self._engine.stack.manager, self._engine.stack.pool
        if not manager.contiguous:
            return Number(value=0.0, unit="%")
        free = free_positions(pool, manager.classes[0])
        if not len(free):
            return Number(value=None, unit="%", why="nothing is free")
        runs = np.split(free[:, 0], np.flatnonzero(np.diff(free[:, 0]) != 1) + 1)
        longest = max(len(run) for run in runs)
        return share(len(free) - longest, len(free), "nothing is free")


def _classes(specs: list[PageSpec]) -> list[PageClassView]:
    """Page classes in the order of the slabs' class index."""
    return [
        PageClassView(
            label=spec.label,
            k_format=spec.k_format,
            v_format=spec.v_format,
            page_bytes=spec.page_bytes,
            group=f"{spec.num_layers} layers x {spec.num_kv_heads} heads",
            bits_per_element=spec.bits_per_element,
        )
        for spec in specs
    ]
