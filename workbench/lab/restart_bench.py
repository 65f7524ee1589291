"""Part of `workbench bench tiers`: a prefix that one process stored serves another one.

For each tier that outlives an engine: a process serves a prompt and ends, a new one serves it
again. Counted: hit tokens over those that can be hit, and the time to the first token over that of
a prompt which has to be computed; with the gate, and with the gate off.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from workbench.errors import WorkbenchError
from workbench.lab.bench_runs import median
from workbench.lab.figures import Figure
from workbench.lab.restart_worker import RestartResult, RestartTask

Progress = Callable[[str], None]
BLOCK_TOKENS = 16
NAMES = {"g3": "local disk", "g35": "shared store", "g4": "objects in a folder"}


@dataclass(frozen=True)
class RestartPlan:
    """Sizes; `random_layers` > 0 takes a small random model."""

    prompt_tokens: int = 2048
    repeats: int = 3
    store_mib: float = 256.0
    random_layers: int = 0


QUICK = RestartPlan(prompt_tokens=256, repeats=1, store_mib=16.0, random_layers=2)


def measure_restart(progress: Progress, plan: RestartPlan) -> list[Figure]:
    """Figures of every tier that keeps pages beyond its engine."""
    figures = []
    for name in NAMES:
        with tempfile.TemporaryDirectory(prefix="kv-workbench-restart-") as folder:
            with _place(name, folder, plan) as tiers:
                figures += _measure_tier(progress, name, tiers, plan)
    return figures


@contextlib.contextmanager
def _place(name: str, folder: str, plan: RestartPlan) -> Iterator[dict[str, Any]]:
    """Settings of one tier that outlives an engine; a store process runs as long as it is used."""
    if name == "g3":
        yield {"tiers.disk_mib": plan.store_mib, "tiers.disk_path": folder, "tiers.disk_keep": True}
    elif name == "g4":
        yield {"tiers.object_url": folder, "tiers.object_mib": plan.store_mib}
    else:
        address = f"ipc://{folder}/store"
        command = [sys.executable, "-m", "workbench", "store", "serve", "--address", address]
        process = subprocess.Popen(
            [*command, "--mib", f"{plan.store_mib:g}"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it says when it serves
            yield {"tiers.shared": "store", "tiers.shared_address": address,
                   "tiers.shared_mib": plan.store_mib}  # fmt: skip
        finally:
            process.terminate()
            process.wait(10)


def _measure_tier(
    progress: Progress, name: str, tiers: dict[str, Any], plan: RestartPlan
) -> list[Figure]:
    settings = _settings(plan) | tiers
    _worker(RestartTask(role="write", settings=settings, prompt_tokens=plan.prompt_tokens,
                        random_layers=plan.random_layers))  # fmt: skip
    runs = {
        gate: [
            _worker(RestartTask(
                role="read", settings=settings | {"tiers.gate": gate}, unknown_seed=100 + index,
                prompt_tokens=plan.prompt_tokens, random_layers=plan.random_layers,
            ))
            for index in range(plan.repeats)
        ]
        for gate in (True, False)
    }  # fmt: skip
    figures = _figures(name, runs[True], runs[False], plan)
    progress("; ".join(f"{figure.name} {figure.value:.3g}" for figure in figures if figure.value))
    return figures


def _settings(plan: RestartPlan) -> dict[str, Any]:
    return {
        "model.max_model_len": plan.prompt_tokens + 2 * BLOCK_TOKENS,
        "cache.hbm_budget_mib": 4.0 if plan.random_layers else 256.0,
        "cache.block_size": BLOCK_TOKENS,
        "scheduling.token_budget": plan.prompt_tokens,
        "scheduling.chunk_tokens": plan.prompt_tokens,
        "tiers.write": "through",
        "tiers.dram_mib": plan.store_mib,  # what is written through waits here for the medium
    }


def _figures(
    name: str, gated: list[RestartResult], free: list[RestartResult], plan: RestartPlan
) -> list[Figure]:
    most = (plan.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    hits = [_hit(result) for result in free]
    equal = all(
        result.fetched is not None
        and result.resident is not None
        and _hit(result) == most
        and result.fetched.logits == result.resident.logits != ""
        for result in free
    )
    accepted = sum(_hit(result) == most for result in gated)
    computed_s = median(result.unknown.ttft_s for result in gated + free)
    return [
        Figure(
            name=f"restart_hit_share_{name}", value=min(hits) / most,
            note=f"{min(hits)} of {most} tokens from {NAMES[name]} in a new process, gate off",
        ),
        Figure(
            name=f"restart_logits_equal_{name}", value=int(equal),
            note="bit for bit those of the same request served by a G1 hit",
        ),
        Figure(
            name=f"{name}_gate_accepts", value=accepted,
            note=f"of {len(gated)} runs with the gate on; hit tokens {[_hit(r) for r in gated]}, "
            f"refused {[r.num_gated for r in gated]}",
        ),
        Figure(
            name=f"{name}_ttft_ratio", value=_ttft_s(gated) / computed_s,
            note=f"gate on: {_ttft_s(gated) * 1e3:.1f} ms to the first token, computed anew "
            f"{computed_s * 1e3:.1f} ms; medians of {len(gated)} processes",
        ),
        Figure(
            name=f"{name}_ttft_ratio_gate_off", value=_ttft_s(free) / computed_s,
            note=f"gate off: {_ttft_s(free) * 1e3:.1f} ms",
        ),
    ]  # fmt: skip


def _hit(result: RestartResult) -> int:
    return result.fetched.num_hit_tokens if result.fetched is not None else 0


def _ttft_s(results: list[RestartResult]) -> float:
    return median(r.fetched.ttft_s for r in results if r.fetched is not None)


def _worker(task: RestartTask) -> RestartResult:
    command = [sys.executable, "-m", "workbench.lab.restart_worker"]
    text = msgspec.json.encode(task).decode()
    done = subprocess.run([*command, text], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WorkbenchError(f"the process that should {task.role} ended early: {last}")
    return msgspec.json.decode(done.stdout, type=RestartResult)
