"""Part of `workbench bench tiers`: what waiting requests gain where their pages come up meanwhile.

Prompts lie on a disk slowed to a stated bandwidth. One request holds the only place; the others
queue behind it, and need their pages when their turn has come. Source: NVIDIA CMX's prestaging.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import bench_model, median, random_prompts, submit
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel

Progress = Callable[[str], None]
WAIT_S = 60.0


@dataclass(frozen=True)
class PrestagePlan:
    """Sizes; `random_layers` > 0 takes a small random model."""

    num_prompts: int = 4
    prompt_tokens: int = 1024
    busy_tokens: int = 96  # that the request in front decodes
    disk_mb_s: float = 150.0
    repeats: int = 3
    random_layers: int = 0


QUICK = PrestagePlan(prompt_tokens=128, busy_tokens=24, disk_mb_s=2.0, repeats=1, random_layers=2)


def measure_prestage(progress: Progress, plan: PrestagePlan) -> list[Figure]:
    """Seconds that requests waited for their pages at their turn, with and without prestaging."""
    model = bench_model("bf16", plan.random_layers)
    with tempfile.TemporaryDirectory(prefix="kv-workbench-prestage-") as folder:
        prompts = random_prompts(model.arch.vocab_size, plan.num_prompts + 1, plan.prompt_tokens, 0)
        _fill(model, plan, folder, prompts[1:])
        stalls: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(plan.repeats):
            for staged in (False, True):
                stalls[staged].append(_stall_s(model, plan, folder, prompts, staged))
    on, off = median(stalls[True]), median(stalls[False])
    progress(f"prestaging: {on * 1e3:.0f} ms of waiting for pages, without {off * 1e3:.0f}")
    note = (
        f"{plan.num_prompts} queued prompts of {plan.prompt_tokens} tokens waited "
        f"{on * 1e3:.0f} ms for their pages, {off * 1e3:.0f} ms without; "
        f"disk slowed to {plan.disk_mb_s:g} MB/s, medians of {plan.repeats}"
    )
    return [Figure(name="prestage_stall_ratio", value=on / off, provenance="throttled", note=note)]


def _settings(plan: PrestagePlan, folder: str) -> dict[str, Any]:
    small = bool(plan.random_layers)
    return {
        "model.max_model_len": plan.prompt_tokens + plan.busy_tokens + 64,
        "cache.hbm_budget_mib": 4.0 if small else 160.0,
        "scheduling.max_num_seqs": 1,
        "scheduling.token_budget": plan.prompt_tokens,
        "scheduling.chunk_tokens": plan.prompt_tokens,
        "tiers.dram_mib": 4.0 if small else 160.0,
        "tiers.disk_mib": 16.0 if small else 320.0,
        "tiers.disk_path": folder,
        "tiers.disk_keep": True,
        "tiers.gate": False,
    }


def _engine(model: LoadedModel, settings: dict[str, Any]) -> Engine:
    engine = Engine(replace_settings(EngineConfig(), settings), model)
    engine.retainer.for_display = False
    return engine


def _fill(model: LoadedModel, plan: PrestagePlan, folder: str, prompts: list[list[int]]) -> None:
    engine = _engine(model, _settings(plan, folder) | {"tiers.write": "through"})
    for prompt in prompts:
        submit(engine, prompt, 1)
    while engine.has_work():
        engine.step()
    engine.hierarchy.wait_io(WAIT_S)
    engine.close()


def _stall_s(
    model: LoadedModel, plan: PrestagePlan, folder: str, prompts: list[list[int]], staged: bool
) -> float:
    """Seconds from the start of each fetch at its request's turn to its end, all together."""
    changes = {"tiers.prestage": staged, "tiers.disk_throttle_mb_s": plan.disk_mb_s}
    engine = _engine(model, _settings(plan, folder) | changes)
    submit(engine, prompts[0][:32], plan.busy_tokens)
    engine.step()
    for prompt in prompts[1:]:
        submit(engine, prompt, 1)
    while engine.has_work():
        engine.step()
    stall_s = sum(gain.fetch_s for gain in engine.fetch_counters.gains.values())
    engine.close()
    return stall_s
