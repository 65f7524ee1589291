"""Decoders on one, two and three ranks over the same prompts, for a bench and for the dashboard."""

from dataclasses import dataclass, field

import torch

from workbench.clock import RealClock
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


def dense(quick: bool) -> tuple[ModelSource, str]:
    """The default model where it is cached, else random weights of its shape."""
    path = cached_path()
    if quick or path is None:
        return ModelSource(arch=TINY if quick else SMOL), "random weights"
    load_model(str(path), "fp32", device="cpu")  # converts it where that was not done yet
    return ModelSource(path=str(path)), "default model"


def mixture(quick: bool) -> ModelSource:
    """The random Qwen3-MoE decoder: 16 experts, 2 a token."""
    return ModelSource(arch=TINY if quick else MOE_BASE, num_experts=16, top_k=2)


def options() -> GroupOptions:
    """How every group of a comparison runs."""
    return GroupOptions(kv_tokens=2048, micro_batches=MICRO_BATCHES)


def entries(whole: ModelSource, moe: ModelSource) -> list[tuple[str, str, ModelSource, Placement]]:
    """(name, its one-process counterpart, model, placement) of all that are compared."""
    arch, shape = whole.known_arch(), moe.moe
    assert shape is not None
    return [
        ("one", "one", whole, tensor_parallel(arch, 1)),
        ("tp2", "one", whole, tensor_parallel(arch, 2)),
        ("tp3", "one", whole, tensor_parallel(arch, 3)),
        ("pp2", "one", whole, pipeline(arch, 2)),
        ("moe_one", "moe_one", moe, experts(shape, 1)),
        ("ep2", "moe_one", moe, experts(shape, 2)),
    ]


def _prompts(arch: ModelArch) -> list[list[int]]:
    make = torch.Generator().manual_seed(5)
    drawn = torch.randint(0, arch.vocab_size, (NUM_PROMPTS, PROMPT_TOKENS), generator=make)
    return [[int(token) for token in row] for row in drawn]


def run_round(each: Contestant, new: int) -> None:
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


def differences(source: ModelSource, sharing: list[Contestant]) -> dict[str, float]:
    """Largest difference of a prompt's logits to the whole decoder's in this process."""
    whole = one_process(source)
    prompt = _prompts(whole.arch)[0]
    expected = naive_logits(whole, prompt)
    apart = {}
    for each in sharing:
        logits = each.group.step({0: prompt}, every_row=True, want_logits=True).logits
        each.group.free([0])
        assert logits is not None
        apart[each.name] = float((logits - expected).abs().max())
    return apart


def equal_tokens(each: Contestant, one: Contestant) -> tuple[int, int]:
    """How many greedy tokens are those of one process, and of how many."""
    pairs = [(a, b) for mine, theirs in zip(each.texts, one.texts, strict=True)
             for a, b in zip(mine, theirs, strict=True)]  # fmt: skip
    return sum(a == b for a, b in pairs), len(pairs)
