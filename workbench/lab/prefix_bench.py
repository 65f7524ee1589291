"""`workbench bench prefix`: first token of a long prompt on a full hit and on a miss."""

from collections.abc import Callable
from dataclasses import dataclass

from workbench.config import EngineConfig
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import bench_engine, bench_model, median, random_prompts, submit
from workbench.lab.figures import Figure

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PrefixPlan:
    """Sizes of the run; `random_layers` > 0 takes a small random model instead of the default."""

    prompt_tokens: int = 1024
    num_new: int = 32
    repeats: int = 5
    random_layers: int = 0


@dataclass(frozen=True)
class Served:
    """One request, alone: seconds to its first token, and the steps after it in ms."""

    ttft_s: float
    step_ms: tuple[float, ...]
    num_cached_tokens: int


def measure(
    progress: Progress, *, quick: bool = False, plan: PrefixPlan | None = None
) -> list[Figure]:
    """A new prompt (a miss), the same again (a hit up to its last block), and with partial hits.

    The last hits all but one token: a copy of the last block's beginning is its own.
    """
    plan = plan or (PrefixPlan(prompt_tokens=128, num_new=4, repeats=1) if quick else PrefixPlan())
    model = bench_model("bf16", plan.random_layers)
    size = plan.prompt_tokens + plan.num_new
    engine = bench_engine(model, num_seqs=2, num_tokens=size, cache__prefix_caching=True)
    default = EngineConfig().scheduling
    chunked = bench_engine(
        model,
        num_seqs=2,
        num_tokens=size,
        scheduling__token_budget=default.token_budget,
        scheduling__chunk_tokens=default.chunk_tokens,
    )
    misses, hits, whole, in_chunks = [], [], [], []
    for repeat in range(plan.repeats + 1):  # the first round warms up and is not counted
        (prompt,) = random_prompts(model.arch.vocab_size, 1, plan.prompt_tokens, repeat)
        miss, hit = serve(engine, prompt, plan.num_new), serve(engine, prompt, plan.num_new)
        engine.apply({"cache.partial_hits": True})
        all_but_one = serve(engine, prompt, plan.num_new)
        engine.apply({"cache.partial_hits": False})
        other = serve(chunked, prompt, 2)
        if repeat:
            whole.append(all_but_one)
            misses.append(miss)
            hits.append(hit)
            in_chunks.append(other)
            progress(f"miss {miss.ttft_s * 1e3:.0f} ms, hit {hit.ttft_s * 1e3:.0f} ms")
    engine.close()
    chunked.close()
    return _figures(plan, misses, hits, whole, in_chunks)


def serve(engine: Engine, prompt: list[int], num_new: int) -> Served:
    """Run one request alone to its end; TTFT from its arrival in the engine."""
    request_id = submit(engine, prompt, num_new)
    steps = []
    while engine.has_work():
        had_first = engine.requests[request_id].first_token_s is not None
        engine.step()
        if had_first and engine.recorder.last is not None:
            steps.append(engine.recorder.last.wall_ms)
    request = engine.finished[request_id]
    assert request.first_token_s is not None
    return Served(
        request.first_token_s - request.arrival_s, tuple(steps), request.num_cached_tokens
    )


def _figures(
    plan: PrefixPlan,
    misses: list[Served],
    hits: list[Served],
    whole: list[Served],
    in_chunks: list[Served],
) -> list[Figure]:
    miss_s = median(served.ttft_s for served in misses)
    hit_s = median(served.ttft_s for served in hits)
    chunks_s = median(served.ttft_s for served in in_chunks)
    whole_s = median(served.ttft_s for served in whole)
    step_ms = median(ms for served in misses + hits + whole for ms in served.step_ms)
    cached, most = (min(served.num_cached_tokens for served in runs) for runs in (hits, whole))
    count, default = plan.prompt_tokens, EngineConfig().scheduling
    runs = f"median of {len(hits)}, bf16, one request at a time"
    return [
        Figure(
            name="prefix_hit_ttft_steps", value=hit_s * 1e3 / step_ms, unit="steps",
            note=f"{cached} of {count} tokens hit: {hit_s * 1e3:.1f} ms, over a decode step of "
            f"{step_ms:.1f} ms at that length; {runs}",
        ),
        Figure(
            name="prefix_hit_ttft_steps_partial", value=whole_s * 1e3 / step_ms, unit="steps",
            note=f"{most} of {count} tokens hit, the last block by copy (cache.partial_hits): "
            f"{whole_s * 1e3:.1f} ms; {runs}",
        ),
        Figure(
            name="prefix_ttft_ratio", value=miss_s / hit_s,
            note=f"miss {miss_s * 1e3:.0f} ms over hit {hit_s * 1e3:.1f} ms; {runs}",
        ),
        Figure(
            name="prefill_tok_per_s", value=count / miss_s, unit="tok/s",
            note=f"{count} prompt tokens, in one step if they fit, first token included; {runs}",
        ),
        Figure(
            name="prefill_tok_per_s_default", value=count / chunks_s, unit="tok/s",
            note=f"with the default chunk of {default.chunk_tokens} tokens a step; {runs}",
        ),
    ]  # fmt: skip
