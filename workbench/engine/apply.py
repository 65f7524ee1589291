"""Live changes of settings: check everything, then do it, and report what was done."""

from typing import TYPE_CHECKING, Any

import torch

from workbench.cache.geometry import Geometry
from workbench.cache.rope_mode import rope_mode
from workbench.config import (
    EngineConfig,
    all_settings,
    difference,
    replace_settings,
)
from workbench.engine.binding import bind_settings
from workbench.engine.cache_stack import make_geometry, plan_slabs
from workbench.engine.calibrating import check_calibration, find_calibration
from workbench.engine.group_specs import group_specs
from workbench.engine.notes import notes
from workbench.engine.placing import check_placement, make_placement
from workbench.engine.recode import forecast, recode
from workbench.engine.residents import count_resident
from workbench.engine.retainer import slots_needed
from workbench.errors import CapacityError, SettingError
from workbench.request import Request
from workbench.views import ApplyReport

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

RECODE_MS_PER_BLOCK = 0.3  # until one was measured
STEP_SIZES = ("scheduling.chunk_tokens", "scheduling.token_budget")  # more is stored, or open


def preview(engine: "Engine", changes: dict[str, Any]) -> ApplyReport:
    """What `apply` would do; raises as `apply` would."""
    config, kinds = _plan(engine, changes)
    before, after = _blocks(engine, config, kinds)
    _, idle = count_resident(engine)
    report: dict[str, Any] = {}
    if "rebuild" in kinds.values():
        report["num_evicted_blocks"] = idle
        report["num_preempted_requests"] = len(engine.scheduler.running)
    elif "recode" in kinds.values():
        result = forecast(engine, config)
        report = vars(result) | {
            "milliseconds": result.num_recoded_blocks * engine.recode_ms_per_block
        }
    return ApplyReport(
        version=engine.config_version,
        changes=difference(config, engine.config),
        previous=difference(engine.config, config),
        kinds=kinds,
        blocks_before=before,
        blocks_after=after,
        preview=True,
        notes=notes(engine, config, kinds),
        **report,
    )


def apply(engine: "Engine", changes: dict[str, Any]) -> ApplyReport:
    """Change settings; nothing is changed if any of them is not possible."""
    started_s = engine.clock.wall_s()
    config, kinds = _plan(engine, changes)
    previous = difference(engine.config, config)
    applied = difference(config, engine.config)
    calibration = find_calibration(config, engine.model, engine.calibration)
    placement = engine.placement
    if "tiers.policy" in kinds:
        placement = make_placement(engine.registry, config.tiers.policy)
    before, _ = _blocks(engine, config, kinds)
    if any(path.startswith("tiers.") for path in kinds):
        engine.hierarchy.configure(config.tiers)  # TierError leaves everything as it was
    numbers: dict[str, Any] = {}
    engine.calibration, engine.placement = calibration, placement
    if "rebuild" in kinds.values():
        numbers = _rebuild(engine, config)
    elif "recode" in kinds.values():
        result = recode(engine, config)
        numbers = vars(result)
    engine.config = config
    _apply_hot(engine)
    engine.config_version += 1
    milliseconds = (engine.clock.wall_s() - started_s) * 1e3
    if numbers.get("num_recoded_blocks"):
        engine.recode_ms_per_block = milliseconds / numbers["num_recoded_blocks"]
    _, after = _blocks(engine, config, {})
    report = ApplyReport(
        version=engine.config_version,
        changes=applied,
        previous=previous,
        kinds=kinds,
        blocks_before=before,
        blocks_after=after,
        milliseconds=milliseconds,
        notes=notes(engine, config, kinds),
        **numbers,
    )
    engine.last_apply = report
    engine.metrics.mark()
    if engine.byte_guard is not None:
        engine.byte_guard.record(engine.stack)
    if applied:
        engine.log.tell(
            "apply",
            changes=applied,
            milliseconds=milliseconds,
            blocks_before=before,
            blocks_after=after,
            **numbers,
        )
    return report


def _plan(engine: "Engine", changes: dict[str, Any]) -> tuple[EngineConfig, dict[str, str]]:
    """The new config and the kind of each change; raises if it cannot be."""
    config = replace_settings(engine.config, changes)
    settings = all_settings()
    kinds = {path: settings[path].metadata["change"] for path in difference(config, engine.config)}
    restarts = [path for path, kind in kinds.items() if kind == "restart"]
    if restarts:
        raise SettingError(f"{restarts[0]} needs the weights loaded again: build a new engine")
    check_calibration(config, engine.model)
    check_placement(engine.registry, config.tiers.policy)
    both = (config.cache, engine.config.cache)
    split = any(cache.values == "dram" for cache in both)  # pages are not whole
    private = any(cache.own_basis for cache in both)  # nor are they without their request's keys
    moved = rope_mode(config) != rope_mode(engine.config)  # or they cannot be read as they are
    if split or private or moved:
        kinds = {path: "rebuild" if kind == "recode" else kind for path, kind in kinds.items()}
    if "rebuild" in kinds.values():
        _check_rebuild(engine, config)
    elif "recode" in kinds.values():
        _check_recode(engine, config)
    elif any(path.startswith("retention.") or path in STEP_SIZES for path in kinds):
        _check_hot(engine, config)
    return config, kinds


def _check_rebuild(engine: "Engine", config: EngineConfig) -> None:
    """Every unfinished request must fit the new cache alone."""
    geometry = make_geometry(config, engine.model)
    limit = _fitting(engine, geometry, config)
    longest = config.model.max_model_len
    for request in engine.requests.values():
        if request.num_tokens + 1 > longest:
            raise SettingError(
                f"model.max_model_len = {longest} is shorter than request {request.request_id} "
                f"({request.num_tokens} tokens): abort it or choose more"
            )
        if _pages_needed(engine, request, config) > limit:
            raise CapacityError(
                f"cache.hbm_budget_mib = {config.cache.hbm_budget_mib:g} MiB is too small for "
                f"request {request.request_id} ({request.num_tokens} tokens): abort it or choose "
                "more"
            )


def _check_recode(engine: "Engine", config: EngineConfig) -> None:
    pool = engine.stack.pool
    specs = group_specs(engine.stack.geometry, config, engine.model)
    biggest = max(spec.page_bytes for spec in specs.distinct)
    if biggest > pool.slab_bytes:
        raise CapacityError(
            f"cache.k_format = {config.cache.k_format} makes a page of {biggest / 2**20:.2f} MiB, "
            "larger than a slab: raise cache.hbm_budget_mib"
        )
    limit = specs.fitting_pages(config, pool.slab_bytes, pool.num_slabs)
    for request in engine.requests.values():
        pages = _pages_needed(engine, request, config)
        if pages > limit:
            raise CapacityError(
                f"request {request.request_id} needs {pages} blocks and {limit} fit in "
                f"{config.cache.k_format}: abort it or raise cache.hbm_budget_mib"
            )


def _check_hot(engine: "Engine", config: EngineConfig) -> None:
    """A request that fits only as its tokens are evicted, or in small steps, must not lose that."""
    stack = engine.stack
    before = stack.manager.capacity_pages
    limit = stack.specs.fitting_pages(config, stack.pool.slab_bytes, stack.pool.num_slabs)
    for request in engine.requests.values():
        pages = _pages_needed(engine, request, config)
        if pages > limit and _pages_needed(engine, request, engine.config) <= before:
            raise CapacityError(
                f"request {request.request_id} would need {pages} blocks and the whole pool has "
                f"{limit}: abort it or raise cache.hbm_budget_mib"
            )


def _pages_needed(engine: "Engine", request: Request, config: EngineConfig) -> int:
    """Pages of each group that a request needs to go on under a config."""
    prompt = request.num_prompt_tokens
    slots = slots_needed(
        config,
        engine.registry.create("retention", config.retention.policy),
        num_tokens=request.num_tokens + 1,
        prompt=prompt,
        longest=prompt + request.sampling.max_tokens,
    )
    return -(-slots // config.cache.block_size)


def _blocks(engine: "Engine", config: EngineConfig, kinds: dict[str, str]) -> tuple[int, int]:
    """Blocks of the whole cache now and under `config`."""
    before = engine.stack.manager.capacity_pages
    if "rebuild" in kinds.values():
        geometry = make_geometry(config, engine.model)
        return before, _fitting(engine, geometry, config)
    if "recode" in kinds.values():
        specs, pool = group_specs(engine.stack.geometry, config, engine.model), engine.stack.pool
        return before, specs.fitting_pages(config, pool.slab_bytes, pool.num_slabs)
    return before, before


def _fitting(engine: "Engine", geometry: Geometry, config: EngineConfig) -> int:
    """Pages of each group that one request could have in a new cache."""
    specs = group_specs(geometry, config, engine.model)
    return specs.fitting_pages(config, *plan_slabs(geometry, config, engine.model))


def _rebuild(engine: "Engine", config: EngineConfig) -> dict[str, int]:
    """Lay the cache out anew; running requests go back to the queue and are recomputed."""
    _, idle = count_resident(engine)
    preempted = engine.scheduler.preempt_all("rebuild")
    for request in engine.scheduler.waiting:
        request.chain_keys.clear()
    engine.stop_shadow()
    engine.replace_stack(config)
    return {"num_evicted_blocks": idle, "num_preempted_requests": preempted}


def _apply_hot(engine: "Engine") -> None:
    config = engine.config
    scheduler = engine.scheduler
    scheduler.settings = config.scheduling
    scheduler.order = engine.registry.create("order", config.scheduling.order)
    engine.retainer.policy = engine.registry.create("retention", config.retention.policy)
    bind_settings(engine)
    if config.model.num_threads:
        torch.set_num_threads(config.model.num_threads)
