"""`workbench bench decode`: decode speed per weight format, batch and prompt length."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from workbench.lab.bandwidth import BUFFER_BYTES, ReadBandwidth, bytes_read_per_step
from workbench.lab.bench_runs import (
    TimedRun,
    bench_engine,
    bench_model,
    median,
    random_prompts,
    rotated,
    step_parts,
    timed_run,
)
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel

Progress = Callable[[str], None]
Case = tuple[str, int, int]  # weight format, batch, prompt tokens


@dataclass(frozen=True)
class DecodePlan:
    """What is measured; `random_layers` > 0 takes a small random model instead of the default."""

    weight_formats: tuple[str, ...] = ("bf16", "fp32", "as_stored", "auto")
    batches: tuple[int, ...] = (1, 8, 32)
    prompt_tokens: tuple[int, ...] = (32, 512)
    num_new: int = 64
    repeats: int = 3
    buffer_bytes: int = BUFFER_BYTES
    random_layers: int = 0


QUICK = DecodePlan(
    weight_formats=("bf16", "as_stored"), batches=(1, 2), prompt_tokens=(16,), num_new=6,
    repeats=1, buffer_bytes=2**24,
)  # fmt: skip


def measure(
    progress: Progress, *, quick: bool = False, plan: DecodePlan | None = None
) -> list[Figure]:
    """Figures of `docs/benchmarks.md`; the formats take turns, medians over the repeats."""
    plan = plan or (QUICK if quick else DecodePlan())
    models = {name: bench_model(name, plan.random_layers) for name in plan.weight_formats}
    bandwidth = ReadBandwidth(plan.buffer_bytes)
    runs: dict[Case, list[TimedRun]] = {}
    for repeat in range(plan.repeats + 1):  # the first round warms up and is not counted
        bandwidth.measure()
        for prompt_tokens in plan.prompt_tokens:
            for batch in plan.batches:
                if repeat == 0 and (batch, prompt_tokens) != _smallest(plan):
                    continue
                for name in rotated(list(plan.weight_formats), repeat):
                    case = (name, batch, prompt_tokens)
                    run = _run(models[name], case, plan, repeat)
                    if repeat:
                        runs.setdefault(case, []).append(run)
                        progress(f"{_label(case)}: decode {run.decode_rate:.1f} tok/s")
    figures = [figure for case in sorted(runs) for figure in _case_figures(case, runs[case])]
    return figures + _bandwidth_figures(plan, models, bandwidth.gb_per_s, runs)


def _smallest(plan: DecodePlan) -> tuple[int, int]:
    return min(plan.batches), min(plan.prompt_tokens)


def _run(model: LoadedModel, case: Case, plan: DecodePlan, repeat: int) -> TimedRun:
    """One cold run of one case in an engine of its own; the prompts differ at each repeat."""
    weight_format, batch, prompt_tokens = case
    engine = bench_engine(
        model,
        num_seqs=batch,
        num_tokens=prompt_tokens + plan.num_new,
        kv_format="fp32" if weight_format == "fp32" else "bf16",
    )
    try:
        prompts = random_prompts(model.arch.vocab_size, batch, prompt_tokens, 1000 * repeat + batch)
        return timed_run(engine, prompts, plan.num_new)
    finally:
        engine.close()


def _label(case: Case) -> str:
    return f"{case[0]} weights, batch {case[1]}, prompt {case[2]}"


def _case_figures(case: Case, runs: list[TimedRun]) -> list[Figure]:
    name = f"{case[0]}_b{case[1]}_p{case[2]}"
    repeats = f"{runs[0].num_tokens} new tokens, median of {len(runs)}"
    cpu = median(run.whole_cpu_s / run.num_tokens for run in runs) * 1e3
    decode_cpu = median(run.decode_cpu_s / run.decode_tokens for run in runs) * 1e3
    steps = step_parts(step for run in runs for step in run.steps)
    return [
        Figure(
            name=f"decode_tok_per_s_{name}", value=median(run.decode_rate for run in runs),
            unit="tok/s",
            note=f"decode steps only, {repeats}, {decode_cpu:.1f} ms CPU a token; {steps}",
        ),
        Figure(
            name=f"request_tok_per_s_{name}", value=median(run.whole_rate for run in runs),
            unit="tok/s", note=f"prompt included, {repeats}, {cpu:.1f} ms CPU a token",
        ),
    ]  # fmt: skip


def _bandwidth_figures(
    plan: DecodePlan,
    models: dict[str, LoadedModel],
    gb_per_s: float,
    runs: dict[Case, list[TimedRun]],
) -> list[Figure]:
    """Weight bytes per second at batch 1 over the bandwidth measured in the same run."""
    threads = torch.get_num_threads()
    figures = [
        Figure(
            name="memory_read_gb_per_s",
            value=gb_per_s,
            unit="GB/s",
            note=f"sum of a buffer of {plan.buffer_bytes / 2**20:.0f} MiB, {threads} threads, best",
        )
    ]
    for weight_format, model in models.items():
        case = (weight_format, 1, min(plan.prompt_tokens))
        if weight_format == "auto" or case not in runs:  # auto reads one of its two copies
            continue
        num_bytes = bytes_read_per_step(model)
        step_s = median(run.decode_s / len(run.steps) for run in runs[case])
        suffix = "" if weight_format == "bf16" else f"_{weight_format}"
        figures.append(
            Figure(
                name=f"bandwidth_share_b1{suffix}",
                value=num_bytes / step_s / 1e9 / gb_per_s,
                note=f"{num_bytes / 1e6:.0f} MB of {weight_format} weights read in a step of "
                f"{step_s * 1e3:.1f} ms, over {gb_per_s:.1f} GB/s",
            )
        )
    return figures
