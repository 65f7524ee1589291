"""Part of `workbench bench tiers`: what leaving out pages of little attention costs and saves.

A text's first part lies on a disk slowed to a stated bandwidth, each page with the attention mass
it was read with. The whole text is then served, with every page read, with the lightest left out,
and with those late. Compared over the text's last tokens: KL to what full retrieval gives, bytes
read, the wait for pages, and the time until the first of them is computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import bench_model, median, submit
from workbench.lab.figures import Figure
from workbench.model.help_text import topic_tokens
from workbench.model.load import LoadedModel
from workbench.quality.metrics import TokenScores, join, score_rows
from workbench.request import Request, RequestSpec, SamplingParams

Progress = Callable[[str], None]
WAIT_S = 120.0


@dataclass(frozen=True)
class RetrievalPlan:
    """Sizes; `random_layers` > 0 takes a small random model."""

    num_texts: int = 3
    context_tokens: int = 1024  # without DRAM, staging has room for so many at a time
    scored_tokens: int = 128
    scored_chunk: int = 16
    disk_mb_s: float = 150.0
    shares: tuple[float, ...] = (0.99, 0.95, 0.9, 0.8)
    late_share: float = 0.9
    random_layers: int = 0


QUICK = RetrievalPlan(
    num_texts=1, context_tokens=256, scored_tokens=32, disk_mb_s=2.0, shares=(0.9,),
    random_layers=2,
)  # fmt: skip


@dataclass(frozen=True)
class Served:
    """One way to serve a text: log-probabilities of its last tokens, time and pages read."""

    rows: Tensor  # fp32 [scored, vocab]
    seconds: float  # to the first of them
    wait_s: float  # of which for pages
    num_found: int  # tokens of the text that the tiers had
    num_left_out: int
    num_late: int
    read_bytes: int


def measure_retrieval(progress: Progress, plan: RetrievalPlan) -> list[Figure]:
    """KL, bytes and time of each share against full retrieval, over some texts."""
    model = bench_model("bf16", plan.random_layers)
    length = plan.context_tokens + plan.scored_tokens
    tokens = topic_tokens(model.tokenizer, 0, plan.num_texts * length)
    ways = [("skip", share) for share in plan.shares] + [("late", plan.late_share)]
    runs: dict[tuple[str, float], list[tuple[Served, Served, TokenScores]]] = {}
    for number in range(plan.num_texts):
        text = tokens[number * length : (number + 1) * length]
        served, full = _serve_all(model, plan, text, ways)
        for way, one in served.items():
            runs.setdefault(way, []).append((one, full, _scores(one, full, plan, text)))
        progress(f"retrieval, text {number + 1}: {full.seconds * 1e3:.0f} ms with every page read")
    figures = []
    for way, found in runs.items():
        figures += _figures(way, found, plan)
        progress("; ".join(f"{figure.name} {figure.value:.3g}" for figure in figures[-4:]))
    return figures


def _settings(plan: RetrievalPlan) -> dict[str, Any]:
    small = bool(plan.random_layers)
    return {
        "model.max_model_len": plan.context_tokens + plan.scored_tokens + 64,
        "cache.hbm_budget_mib": 4.0 if small else 160.0,
        "scheduling.token_budget": plan.context_tokens,
        "scheduling.chunk_tokens": plan.context_tokens,
        "tiers.disk_mib": 16.0 if small else 160.0,
        "tiers.write": "through",
        "tiers.gate": False,
        "tiers.retrieval": "skip",
    }


def _serve_all(
    model: LoadedModel, plan: RetrievalPlan, text: list[int], ways: list[tuple[str, float]]
) -> tuple[dict[tuple[str, float], Served], Served]:
    """Each way, then full retrieval, always with nothing in HBM."""
    engine = Engine(replace_settings(EngineConfig(), _settings(plan)), model)
    engine.retainer.for_display = False
    submit(engine, text[: plan.context_tokens], 1)
    while engine.has_work():
        engine.step()
    engine.hierarchy.wait_io(WAIT_S)  # staging holds so much at a time
    engine.stack.pool.drop_idle_rows()  # what each page was read with goes down with it
    engine.hierarchy.wait_io(WAIT_S)
    slow = {"tiers.disk_throttle_mb_s": plan.disk_mb_s, "tiers.write": "back"}
    engine.apply({"scheduling.chunk_tokens": plan.scored_chunk} | slow)
    served = {}
    for how, share in [ways[0], *ways]:  # the first one warms up
        engine.apply({"tiers.retrieval": how, "tiers.retrieval_share": share})
        served[how, share] = _serve(engine, plan, text)
    engine.apply({"tiers.retrieval": "all"})
    full = _serve(engine, plan, text)
    engine.close()
    return served, full


def _serve(engine: Engine, plan: RetrievalPlan, text: list[int]) -> Served:
    rows: list[Tensor] = []
    first_s: list[float] = []

    def tap(request: Request, positions: np.ndarray, logits: Tensor) -> None:
        first_s.append(engine.clock.now_s())
        rows.append(torch.log_softmax(logits.float(), -1))

    counters = engine.fetch_counters
    before = counters.num_left_out_pages, counters.num_late_pages, _read_bytes(engine)
    engine.tap = tap
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    spec = RequestSpec(token_ids=text, sampling=sampling, logits_from=plan.context_tokens)
    started_s = engine.clock.now_s()
    request = engine.requests[engine.add_request(spec)]
    while engine.has_work():
        engine.step()
    engine.tap = None
    engine.hierarchy.wait_io(WAIT_S)
    engine.stack.pool.evict_all()  # nothing goes down: masses stay as the first reader's
    left_out, late, read = (
        now - then
        for now, then in zip(
            (counters.num_left_out_pages, counters.num_late_pages, _read_bytes(engine)),
            before,
            strict=True,
        )
    )
    took_s = first_s[0] - started_s
    found = request.num_cached_tokens
    return Served(torch.cat(rows), took_s, counters.last_load_s, found, left_out, late, read)


def _read_bytes(engine: Engine) -> int:
    return sum(tier.loaded_bytes for tier in engine.hierarchy.stats().tiers)


def _scores(one: Served, full: Served, plan: RetrievalPlan, text: list[int]) -> TokenScores:
    count = plan.scored_tokens - 1  # the last row predicts what the text does not say
    targets = np.array(text[plan.context_tokens + 1 :], np.int64)
    positions = np.arange(plan.context_tokens, plan.context_tokens + count)
    mask = np.ones(count, bool)
    return score_rows(full.rows[:count], one.rows[:count], targets, positions, mask)


def _figures(
    way: tuple[str, float], found: list[tuple[Served, Served, TokenScores]], plan: RetrievalPlan
) -> list[Figure]:
    how, share = way
    name = f"retrieval_{how}_{round(100 * share)}"
    scores = join([each for _, _, each in found])
    read = sum(one.read_bytes for one, _, _ in found) / sum(full.read_bytes for _, full, _ in found)
    ratio = median(one.seconds / full.seconds for one, full, _ in found)
    wait = median(one.wait_s / full.wait_s for one, full, _ in found)
    pages = sum(one.num_left_out for one, _, _ in found)
    late = sum(one.num_late for one, _, _ in found)
    agree = 1.0 - len(scores.flips) / len(scores)
    full_s = median(full.seconds for _, full, _ in found)
    tokens = min(full.num_found for _, full, _ in found)
    said = f"read share {share:g}, {len(found)} texts of which {tokens} tokens lay on disk"
    quality = (
        f"{said}: {pages} pages left out, {late} of them written later; over {len(scores)} tokens "
        f"{agree:.1%} of the greedy choices agree, perplexity {np.exp(scores.nll.mean()):.3f} "
        f"instead of {np.exp(scores.nll_full.mean()):.3f}"
    )
    wait_s = median(full.wait_s for _, full, _ in found)
    slowed = f"disk slowed to {plan.disk_mb_s:g} MB/s"
    saved = f"{said}; {full_s * 1e3:.0f} ms with every page, {slowed}"
    waited = f"{said}; pages were waited for {wait_s * 1e3:.0f} ms where all are read, {slowed}"
    return [
        Figure(name=f"{name}_kl", value=float(scores.kl.mean()), unit="nats", note=quality),
        Figure(name=f"{name}_read_share", value=read, note=f"{said}; bytes read, of all"),
        Figure(name=f"{name}_wait_ratio", value=wait, provenance="throttled", note=waited),
        Figure(name=f"{name}_ttft_ratio", value=ratio, provenance="throttled", note=saved),
    ]
