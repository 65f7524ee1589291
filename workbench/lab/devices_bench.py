"""`workbench bench devices`: a decoder on two and three ranks beside one process.

Each placement decodes the same prompts by the same kernels, rounds taken in turn, so that a
machine that slows down slows all. The default model is shared by heads and by layers; experts are
those of a random Qwen3-MoE decoder.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack

from workbench.lab.devices_runs import (
    MICRO_BATCHES,
    NUM_PROMPTS,
    PROMPT_TOKENS,
    Contestant,
    dense,
    differences,
    entries,
    equal_tokens,
    mixture,
    options,
    run_round,
)
from workbench.lab.figures import Figure
from workbench.spatial.devices.group import DeviceGroup
from workbench.spatial.devices.report import DeviceReport


def measure(progress: Callable[[str], None], *, quick: bool) -> list[Figure]:
    """All figures; `quick` takes tiny models and few tokens."""
    whole, kind = dense(quick)
    moe = mixture(quick)
    new, rounds = (6, 1) if quick else (33, 3)
    figures = []
    with ExitStack() as stack:
        contestants = []
        for name, one, source, placement in entries(whole, moe):
            progress(f"{name}: starting {placement.num_ranks} rank(s)")
            group = stack.enter_context(DeviceGroup(source, placement, options()))
            contestants.append(Contestant(name, one, group))
        for number in range(rounds):
            for each in contestants:
                progress(f"{each.name}: round {number + 1} of {rounds}")
                run_round(each, new)
        ones = {each.name: each for each in contestants}
        for source in (whole, moe):
            sharing = [each for each in contestants if each.group.source is source]
            apart = differences(source, sharing)
            for each in sharing:
                label = kind if source is whole else "random Qwen3-MoE, 16 experts, 2 a token"
                figures += _figures(each, ones[each.one], apart[each.name], label)
    return figures


def _figures(each: Contestant, one: Contestant, difference: float, label: str) -> list[Figure]:
    report, name = each.report, each.name
    assert report is not None
    cores, rate = len(os.sched_getaffinity(0)), max(each.rates)
    prompt_rate = max(each.prompt_rates)
    machine = (
        f"{report.num_ranks} process(es) of one thread on {cores} cores, {report.backend}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    figures = [
        Figure(name=f"{name}_tokens_per_s", value=rate, unit="1/s",
               note=f"{label}, fp32, {NUM_PROMPTS} sequences; {machine}; best of "
                    f"{len(each.rates)}; {rate / max(one.rates):.3g} times one process"),
        Figure(name=f"{name}_prompt_tokens_per_s", value=prompt_rate, unit="1/s",
               note=f"{NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens in one step; "
                    f"{prompt_rate / max(one.prompt_rates):.3g} times one process"),
        Figure(name=f"{name}_logit_difference", value=difference,
               note="largest, to the whole decoder without a cache, fp32, all rows of a prompt"),
    ]  # fmt: skip
    if each is one:
        return figures
    same, total = equal_tokens(each, one)
    figures.append(
        Figure(name=f"{name}_tokens_equal", value=same / total,
               note=f"{same} of {total} greedy tokens are one process's")
    )  # fmt: skip
    return figures + _shared_figures(name, report)


def _shared_figures(name: str, report: DeviceReport) -> list[Figure]:
    """Bytes, balance and time in communication of several ranks."""
    figures = []
    for kind, value in report.moved_per_token.items():
        formula, wire = report.formula_per_token[kind], report.wire_per_token[kind]
        note = f"decode, all ranks together; formula {formula:,.0f} B, on the wire {wire:,.0f} B"
        figures.append(
            Figure(name=f"{name}_{kind}_bytes_per_token", value=value, unit="B", note=note)
        )
        calls = sum(rank.traffic[kind].calls for rank in report.ranks)
        spent = sum(rank.traffic[kind].seconds for rank in report.ranks)
        figures.append(
            Figure(name=f"{name}_{kind}_ms", value=1000 * spent / calls, unit="ms",
                   note="mean of a call, waiting for others included")
        )  # fmt: skip
    waits = [rank.comm_s / report.wall_s for rank in report.ranks]
    figures += [
        Figure(name=f"{name}_communication_share", value=max(waits),
               note="of the time, most of any rank: in collectives, waiting for others included"),
        Figure(name=f"{name}_kv_balance", value=report.kv_balance,
               note="KV bytes of the fullest rank over the mean"),
        Figure(name=f"{name}_token_balance", value=report.token_balance,
               note="tokens of the busiest rank over the mean"),
    ]  # fmt: skip
    if report.kind == "pipeline":
        figures.append(
            Figure(name=f"{name}_overlap", value=report.overlap,
                   note=f"of the computing time, both ranks at once; {MICRO_BATCHES} micro-batches")
        )  # fmt: skip
    if report.kind == "experts":
        figures += [
            Figure(name=f"{name}_expert_balance", value=report.expert_balance,
                   note="rows through the experts of the busiest rank over the mean"),
            Figure(name=f"{name}_hottest_expert", value=report.hottest_expert,
                   note="rows through the busiest expert over the mean"),
        ]  # fmt: skip
    return figures
