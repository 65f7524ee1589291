"""One engine in a fresh process: `python -m workbench.lab.restart_worker JSON`; prints one object.

`write` serves a prompt, so that its pages go down, and ends. `read` serves it again: first a prompt
that nobody knows (what computing takes), then the one that an earlier process left in a tier, then
the same from HBM, whose logits have to be equal bit for bit.
"""

import hashlib
import sys
from typing import Any

import msgspec
import numpy as np

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import bench_model, random_prompts
from workbench.request import Request, RequestSpec, SamplingParams

WAIT_S = 120.0


class RestartTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve, over which tiers; `role` is write or read."""

    role: str
    settings: dict[str, Any]
    prompt_tokens: int
    random_layers: int = 0
    unknown_seed: int = 100  # of the prompts that no process has served


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One request: seconds to its first token, prompt tokens found, SHA-256 of its logits."""

    ttft_s: float
    num_hit_tokens: int
    logits: str = ""


class RestartResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader saw; the writer has only `unknown`, the prompt it served."""

    unknown: Served
    fetched: Served | None = None
    resident: Served | None = None
    num_gated: int = 0
    faults: dict[str, int] = {}


def run(task: RestartTask) -> RestartResult:
    """Serve in the task's role."""
    model = bench_model("bf16", task.random_layers)
    engine = Engine(replace_settings(EngineConfig(), task.settings), model)
    engine.retainer.for_display = False
    vocab, length = model.arch.vocab_size, task.prompt_tokens
    (known,) = random_prompts(vocab, 1, length, 0)
    if task.role == "write":
        result = RestartResult(unknown=_serve(engine, known))
        engine.hierarchy.wait_io(WAIT_S)
    else:
        warm, unknown = random_prompts(vocab, 2, length, task.unknown_seed)
        _serve(engine, warm[: length // 2])
        result = RestartResult(
            unknown=_serve(engine, unknown),
            fetched=_serve(engine, known),
            resident=_serve(engine, known),
            num_gated=engine.fetch_counters.num_gated,
            faults={t.name: sum(t.faults.values()) for t in engine.hierarchy.stats().tiers},
        )
    engine.close()
    return result


def _serve(engine: Engine, prompt: list[int]) -> Served:
    """Serve one request alone, to its first token."""
    taken: list[np.ndarray] = []

    def tap(request: Request, positions: np.ndarray, logits: Any) -> None:
        taken.append(logits[-1].float().numpy().copy())

    engine.tap = tap
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    spec = RequestSpec(token_ids=prompt, sampling=sampling, logits_from=len(prompt) - 1)
    started_s = engine.clock.now_s()
    request = engine.requests[engine.add_request(spec)]
    while engine.has_work():
        engine.step()
    engine.tap = None
    return Served(
        ttft_s=engine.clock.now_s() - started_s,
        num_hit_tokens=request.num_cached_tokens,
        logits=hashlib.sha256(taken[-1].tobytes()).hexdigest() if taken else "",
    )


if __name__ == "__main__":
    answer = run(msgspec.json.decode(sys.argv[1], type=RestartTask))
    print(msgspec.json.encode(answer).decode())
