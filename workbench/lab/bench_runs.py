"""What the benches share: engines of a fitting budget, random prompts, timed runs, medians."""

import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workbench.clock import RealClock
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.engine.heap import settle_heap
from workbench.lab.figures import Figure, Provenance
from workbench.model.load import LoadedModel, load_model
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, SamplingParams
from workbench.views import StepView

PARTS = (
    "attention_ms", "linears_ms", "gather_ms", "dequant_ms", "scheduler_ms", "other_ms",
)  # fmt: skip
MAX_CHUNK = 2048  # prompt tokens of one step: larger steps only need more scratch
_MIB = 2**20


@dataclass(frozen=True)
class TimedRun:
    """One batch from its submission to its last token.

    `decode_s` and `decode_tokens` cover the steps in which every request got one token;
    `steps` are those steps.
    """

    num_tokens: int
    whole_s: float
    whole_cpu_s: float
    decode_tokens: int
    decode_s: float
    decode_cpu_s: float
    steps: tuple[StepView, ...]
    token_ids: tuple[tuple[int, ...], ...]

    @property
    def whole_rate(self) -> float:
        """New tokens per second of the whole request."""
        return self.num_tokens / self.whole_s

    @property
    def decode_rate(self) -> float:
        """New tokens per second while nothing but decoding ran."""
        return self.decode_tokens / self.decode_s


def bench_model(weight_format: str, random_layers: int = 0) -> LoadedModel:
    """The default model in a weight format, or a small random one, for tests of the benches."""
    if random_layers:
        return random_model(random_layers)
    model = load_model(weight_format=weight_format)
    settle_heap()  # as the engine's process does
    return model


def bench_engine(
    model: LoadedModel,
    *,
    num_seqs: int,
    num_tokens: int,
    kv_format: str = "bf16",
    **changes: Any,
) -> Engine:
    """An engine whose budget holds `num_seqs` requests of `num_tokens` tokens, cold, unwatched.

    `changes` are further settings, with `__` for the dot of a path.
    """
    arch = model.arch
    page_tokens = EngineConfig().cache.block_size
    tokens = num_seqs * (num_tokens + 2 * page_tokens)
    plane_bytes = tokens * arch.num_layers * arch.num_kv_heads * arch.head_dim
    budget = plane_bytes * 2 * (4 if kv_format == "fp32" else 2) / _MIB
    settings: dict[str, Any] = {
        "cache.hbm_budget_mib": max(1.0, 1.1 * budget),
        "cache.k_format": kv_format, "cache.v_format": kv_format,
        "cache.prefix_caching": False,
        "model.max_model_len": max(64, num_tokens + page_tokens),
        "scheduling.max_num_seqs": num_seqs,
        "scheduling.token_budget": MAX_CHUNK + num_seqs,  # whole chunks, decoding beside them
        "scheduling.chunk_tokens": MAX_CHUNK,
    }  # fmt: skip
    settings |= {path.replace("__", "."): value for path, value in changes.items()}
    engine = Engine(replace_settings(EngineConfig(), settings), model)
    engine.retainer.for_display = False  # nobody looks
    return engine


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """`count` distinct prompts of `length` random token ids."""
    draw = random.Random(seed)
    low, high = (1000, 40000) if vocab_size > 40000 else (1, vocab_size - 1)
    return [[draw.randrange(low, high) for _ in range(length)] for _ in range(count)]


def submit(engine: Engine, prompt: list[int], num_new: int) -> str:
    """Queue one greedy request that ends by its length alone."""
    sampling = SamplingParams(max_tokens=num_new, ignore_eos=True)
    return engine.add_request(RequestSpec(token_ids=prompt, sampling=sampling))


def timed_run(engine: Engine, prompts: list[list[int]], num_new: int) -> TimedRun:
    """Submit all prompts at once and run to the end; the engine must be idle."""
    clock = RealClock()
    started_s, started_cpu_s = clock.now_s(), clock.cpu_s()
    ids = [submit(engine, prompt, num_new) for prompt in prompts]
    tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
    steps: list[StepView] = []
    decode_s = decode_cpu_s = 0.0
    while engine.has_work():
        begun_s, begun_cpu_s = clock.now_s(), clock.cpu_s()
        outputs = engine.step()
        for output in outputs:
            tokens[output.request_id] += output.new_token_ids
        last = engine.recorder.last
        if last is None or last.num_prefill_tokens or last.num_decode_tokens < len(ids):
            continue
        steps.append(last)
        decode_s += clock.now_s() - begun_s
        decode_cpu_s += clock.cpu_s() - begun_cpu_s
    return TimedRun(
        sum(map(len, tokens.values())), clock.now_s() - started_s,
        clock.cpu_s() - started_cpu_s, len(steps) * len(ids), decode_s, decode_cpu_s,
        tuple(steps), tuple(tuple(tokens[request_id]) for request_id in ids),
    )  # fmt: skip


def median(values: Iterable[float]) -> float:
    """The median; raises StatisticsError when there is nothing."""
    return float(statistics.median(values))


def step_parts(steps: Iterable[StepView]) -> str:
    """Medians of a step's parts as text for a figure's note."""
    views = list(steps)
    parts = ", ".join(
        f"{name.removesuffix('_ms')} {_median_or_fused([getattr(view, name) for view in views])}"
        for name in PARTS
    )
    wall, cpu = (median(getattr(view, name) for view in views) for name in ("wall_ms", "cpu_ms"))
    return f"step {wall:.1f} ms wall, {cpu:.1f} ms CPU: {parts}"


def _median_or_fused(times: list[float | None]) -> str:
    """The median in ms; what a GPU does inside another kernel has none."""
    known = [ms for ms in times if ms is not None]
    return f"{median(known):.1f}" if known else "n/a (fused)"


def refused(names: Iterable[str], why: str) -> list[Figure]:
    """Figures without a value, for one reason."""
    provenance: Provenance = "refused"
    return [Figure(name=name, value=None, provenance=provenance, note=why) for name in names]


def rotated(items: list[Any], by: int) -> list[Any]:
    """The items starting elsewhere, so that no one always goes first."""
    by %= max(1, len(items))
    return items[by:] + items[:by]
