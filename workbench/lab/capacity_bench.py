"""`workbench bench capacity`: tokens in the same bytes, resident memory, decode slowdown."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from workbench.engine.engine import Engine
from workbench.errors import WorkbenchError
from workbench.lab.bench_runs import (
    bench_engine,
    bench_model,
    median,
    random_prompts,
    rotated,
    step_parts,
    submit,
)
from workbench.lab.capacity_worker import CapacityResult, CapacityTask
from workbench.lab.figures import Figure
from workbench.views import StepView

Progress = Callable[[str], None]
BASE = "bf16"
FORMATS = {"fp8": "fp8_e4m3", "int8": "int8", "int4": "int4"}  # figure's name: setting
BLOCK_STEPS = 8  # steps of one format before the next one's turn


@dataclass(frozen=True)
class CapacityPlan:
    """Sizes of both parts; `random_layers` > 0 takes a small random model."""

    budget_mib: float = 64.0
    prompt_tokens: int = 32  # of one admitted request: two blocks
    num_seqs: int = 8
    context_tokens: int = 256
    num_steps: int = 64  # decode steps of each format
    random_layers: int = 0


QUICK = CapacityPlan(budget_mib=8.0, num_seqs=2, context_tokens=64, num_steps=16)


def measure(
    progress: Progress, *, quick: bool = False, plan: CapacityPlan | None = None
) -> list[Figure]:
    """Capacity in a fresh process for each format, then decode steps of all formats in turn."""
    plan = plan or (QUICK if quick else CapacityPlan())
    base = admit(BASE, plan)
    figures = [_tokens_figure(BASE, base, plan)]
    errors = [_rss_figure(BASE, base)]
    for name, setting in FORMATS.items():
        result = admit(setting, plan)
        progress(f"{setting}: {result.num_tokens} tokens, bf16 {base.num_tokens}")
        figures += [_tokens_figure(name, result, plan), _ratio_figure(name, result, base, plan)]
        errors.append(_rss_figure(name, result))
    worst = max(errors, key=lambda figure: abs(figure.value or 0.0))
    figures += errors
    figures.append(
        Figure(name="rss_error", value=worst.value, unit="%", note=f"the largest: {worst.name}")
    )
    return figures + slowdowns(progress, plan)


def admit(setting: str, plan: CapacityPlan) -> CapacityResult:
    """Fill the budget in one format in a process of its own; raises WorkbenchError if it fails."""
    task = CapacityTask(
        kv_format=setting, budget_mib=plan.budget_mib, prompt_tokens=plan.prompt_tokens,
        random_layers=plan.random_layers,
    )  # fmt: skip
    command = [sys.executable, "-m", "workbench.lab.capacity_worker"]
    done = subprocess.run(
        [*command, msgspec.json.encode(task).decode()], capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WorkbenchError(f"measuring {setting} ended early ({last}): free memory and try again")
    result = msgspec.json.decode(done.stdout, type=CapacityResult)
    if not result.num_refused:
        raise WorkbenchError(
            f"{setting} refused nothing within {plan.budget_mib:g} MiB: choose a smaller budget"
        )
    return result


def _tokens_figure(name: str, result: CapacityResult, plan: CapacityPlan) -> Figure:
    return Figure(
        name=f"capacity_tokens_{name}",
        value=result.num_tokens,
        unit="tokens",
        note=f"requests of {plan.prompt_tokens} tokens until refusal in {plan.budget_mib:g} MiB, "
        f"{result.num_pages} pages of {result.page_bytes:,} bytes",
    )


def _ratio_figure(
    name: str, result: CapacityResult, base: CapacityResult, plan: CapacityPlan
) -> Figure:
    return Figure(
        name=f"capacity_ratio_{name}",
        value=result.num_tokens / base.num_tokens,
        note=f"tokens until refusal over bf16's {base.num_tokens} in {plan.budget_mib:g} MiB; by "
        f"page bytes {base.page_bytes / result.page_bytes:.3f}",
    )


def _rss_figure(name: str, result: CapacityResult) -> Figure:
    error = 100.0 * (result.rss_growth_bytes / result.ledger_bytes - 1.0)
    return Figure(
        name=f"rss_error_{name}",
        value=error,
        unit="%",
        note=f"process grew by {result.rss_growth_bytes / 2**20:.1f} MiB, ledger "
        f"{result.ledger_bytes / 2**20:.1f} MiB (written pages and scratch)",
    )


def slowdowns(progress: Progress, plan: CapacityPlan) -> list[Figure]:
    """Decode step of each format over bf16's; the formats take turns in one process."""
    model = bench_model("bf16", plan.random_layers)
    names = {"bf16": BASE, **FORMATS}
    num_new = plan.num_steps + BLOCK_STEPS + 2
    engines: dict[str, Engine] = {}
    for name, setting in names.items():
        engine = bench_engine(
            model, num_seqs=plan.num_seqs, num_tokens=plan.context_tokens + num_new,
            kv_format=setting,
        )  # fmt: skip
        prompts = random_prompts(model.arch.vocab_size, plan.num_seqs, plan.context_tokens, 7)
        for prompt in prompts:
            submit(engine, prompt, num_new)
        engines[name] = engine
    for engine in engines.values():
        _prefill(engine, plan.num_seqs)
    steps: dict[str, list[StepView]] = {name: [] for name in names}
    for turn in range(max(1, plan.num_steps // BLOCK_STEPS)):
        for name in rotated(list(names), turn):
            steps[name] += _decode(engines[name], BLOCK_STEPS)
        progress(f"decode steps {(turn + 1) * BLOCK_STEPS} of {plan.num_steps}")
    for engine in engines.values():
        engine.close()
    return [_slowdown_figure(name, steps, plan) for name in FORMATS]


def _prefill(engine: Engine, num_seqs: int) -> None:
    """Run until a step decodes for every request."""
    while True:
        engine.step()
        last = engine.recorder.last
        if last and last.num_decode_tokens == num_seqs and not last.num_prefill_tokens:
            return


def _decode(engine: Engine, num_steps: int) -> list[StepView]:
    """So many decode steps."""
    views = []
    for _ in range(num_steps):
        engine.step()
        if engine.recorder.last is not None:
            views.append(engine.recorder.last)
    return views


def _slowdown_figure(name: str, steps: dict[str, list[StepView]], plan: CapacityPlan) -> Figure:
    own, base = (median(view.wall_ms for view in steps[key]) for key in (name, "bf16"))
    cpu, base_cpu = (median(view.cpu_ms for view in steps[key]) for key in (name, "bf16"))
    return Figure(
        name=f"decode_slowdown_{name}",
        value=own / base,
        note=f"{plan.num_seqs} x {plan.context_tokens} tokens, {len(steps[name])} steps each in "
        f"turns, CPU time ratio {cpu / base_cpu:.2f}; {step_parts(steps[name])}; bf16 "
        f"{step_parts(steps['bf16'])}",
    )
