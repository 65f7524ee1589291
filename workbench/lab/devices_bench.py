"""`workbench bench devices`: a decoder on two and three ranks beside one process.

Each placement decodes the same prompts by the same kernels, rounds taken in turn, so that a
machine that slows down slows all. The default model is shared by heads and by layers; experts are
those of a random Qwen3-MoE decoder.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from workbench.clock import RealClock
from workbench.lab.figures import Figure
from workbench.model.arch import ModelArch
from workbench.model.fetch import cached_path
from workbench.model.load import load_model
from workbench.model.naive import naive_logits
from workbench.spatial.devices.group import DeviceGroup, GroupOptions
from workbench.spatial.devices.placement import Placement, experts, pipeline, tensor_parallel
from workbench.spatial.devices.report import DeviceReport
from workbench.spatial.devices.sources import ModelSource, one_process

TINY = ModelArch("random", 4, 96, 6, 3, 16, 128, 256)
SMOL = ModelArch("random", 30, 576, 9, 3, 64, 1536, 49152, tie_embeddings=True)
MOE_BASE = ModelArch("random", 8, 512, 8, 4, 64, 768, 8192, qk_norm=True)
NUM_PROMPTS, PROMPT_TOKENS, MICRO_BATCHES = 8, 32, 2


@dataclass
class Contestant:
    """One placement of one model, and what its rounds gave."""

    name: str
    one: str  # the name of its one-process counterpart
    group: DeviceGroup
    rates: list[float] = field(default_factory=list)
    prompt_rates: list[float] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    report: DeviceReport | None = None


def measure(progress: Callable[[str], None], *, quick: bool) -> list[Figure]:
    """All figures; `quick` takes tiny models and few tokens."""
    dense, kind = _dense(quick)
    moe = ModelSource(arch=TINY if quick else MOE_BASE, num_experts=16, top_k=2)
    new, rounds = (6, 1) if quick else (33, 3)
    figures = []
    with ExitStack() as stack:
        contestants = []
        for name, one, source, placement in _entries(dense, moe):
            progress(f"{name}: starting {placement.num_ranks} rank(s)")
            options = GroupOptions(kv_tokens=2048, micro_batches=MICRO_BATCHES)
            group = stack.enter_context(DeviceGroup(source, placement, options))
            contestants.append(Contestant(name, one, group))
        for number in range(rounds):
            for each in contestants:
                progress(f"{each.name}: round {number + 1} of {rounds}")
                _round(each, new)
        ones = {each.name: each for each in contestants}
        for source in (dense, moe):
            sharing = [each for each in contestants if each.group.source is source]
            differences = _differences(source, sharing)
            for each in sharing:
                label = kind if source is dense else "random Qwen3-MoE, 16 experts, 2 a token"
                figures += _figures(each, ones[each.one], differences[each.name], label)
    return figures


def _dense(quick: bool) -> tuple[ModelSource, str]:
    """The default model where it is cached, else random weights of its shape."""
    path = cached_path()
    if quick or path is None:
        return ModelSource(arch=TINY if quick else SMOL), "random weights"
    load_model(str(path), "fp32", device="cpu")  # converts it where that was not done yet
    return ModelSource(path=str(path)), "default model"


def _entries(dense: ModelSource, moe: ModelSource) -> list[tuple[str, str, ModelSource, Placement]]:
    arch, shape = dense.known_arch(), moe.moe
    assert shape is not None
    return [
        ("one", "one", dense, tensor_parallel(arch, 1)),
        ("tp2", "one", dense, tensor_parallel(arch, 2)),
        ("tp3", "one", dense, tensor_parallel(arch, 3)),
        ("pp2", "one", dense, pipeline(arch, 2)),
        ("moe_one", "moe_one", moe, experts(shape, 1)),
        ("ep2", "moe_one", moe, experts(shape, 2)),
    ]


def _prompts(arch: ModelArch) -> list[list[int]]:
    make = torch.Generator().manual_seed(5)
    drawn = torch.randint(0, arch.vocab_size, (NUM_PROMPTS, PROMPT_TOKENS), generator=make)
    return [[int(token) for token in row] for row in drawn]


def _round(each: Contestant, new: int) -> None:
    """Decode all prompts together; keeps the rates of the prompts' step and of those after it."""
    clock, group = RealClock(), each.group
    begun = clock.now_s()
    tokens = group.step(dict(enumerate(_prompts(group.arch)))).tokens
    each.prompt_rates.append(NUM_PROMPTS * PROMPT_TOKENS / (clock.now_s() - begun))
    texts = [[token] for token in tokens]
    group.report(reset=True)
    begun = clock.now_s()
    for _ in range(new - 1):
        tokens = group.step({number: [token] for number, token in enumerate(tokens)}).tokens
        for text, token in zip(texts, tokens, strict=True):
            text.append(token)
    rate = NUM_PROMPTS * (new - 1) / (clock.now_s() - begun)
    report = group.report(reset=True)
    group.free(range(NUM_PROMPTS))
    if not each.rates or rate > max(each.rates):
        each.report = report
    each.rates.append(rate)
    each.texts = texts


def _differences(source: ModelSource, sharing: list[Contestant]) -> dict[str, float]:
    """Largest difference of a prompt's logits to the whole decoder's in this process."""
    whole = one_process(source)
    prompt = _prompts(whole.arch)[0]
    expected = naive_logits(whole, prompt)
    differences = {}
    for each in sharing:
        logits = each.group.step({0: prompt}, every_row=True, want_logits=True).logits
        each.group.free([0])
        assert logits is not None
        differences[each.name] = float((logits - expected).abs().max())
    return differences


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
    pairs = [(a, b) for mine, theirs in zip(each.texts, one.texts, strict=True)
             for a, b in zip(mine, theirs, strict=True)]  # fmt: skip
    same = sum(a == b for a, b in pairs)
    figures.append(
        Figure(name=f"{name}_tokens_equal", value=same / len(pairs),
               note=f"{same} of {len(pairs)} greedy tokens are one process's")
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
