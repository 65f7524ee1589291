"""Part of `workbench bench tiers`: how requests share the link to object storage.

Requests come at once whose prefixes lie in objects behind a link slowed to a stated bandwidth. Some
have a long rest to compute, others a short one. Added is the time to their first tokens over that
without the throttle. Source: ObjectCache (arXiv 2605.22850), whose split by slack gained 1.2-1.8.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.clock import RealClock
from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import bench_model, median, random_prompts, submit
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel
from workbench.settings.tiers import OBJECT_SPLITS

Progress = Callable[[str], None]
LOCAL = "local"
WAIT_S = 60.0


@dataclass(frozen=True)
class SplitPlan:
    """Sizes; `rests`: tokens that each request computes behind its prefix. `random_layers` > 0
    takes a small random model."""

    prefix_tokens: int = 128
    rests: tuple[int, ...] = (1024, 1024, 16, 16)
    link_mb_s: float = 60.0
    warm_tokens: int = 256  # computed first, so that the engine knows its own speed
    hbm_mib: float = 160.0
    dram_mib: float = 96.0
    repeats: int = 3
    random_layers: int = 0


QUICK = SplitPlan(
    prefix_tokens=256, rests=(256, 16), link_mb_s=0.1, warm_tokens=64, hbm_mib=4.0, dram_mib=4.0,
    repeats=1, random_layers=2,
)  # fmt: skip


def measure_split(progress: Progress, plan: SplitPlan) -> list[Figure]:
    """Added time to first tokens of each split, and equal over slack."""
    model = bench_model("bf16", plan.random_layers)
    count = len(plan.rests)
    longest = plan.prefix_tokens + max(plan.rests)
    *prompts, warm = random_prompts(model.arch.vocab_size, count + 1, longest, 0)
    prompts = [
        prompt[: plan.prefix_tokens + rest]
        for prompt, rest in zip(prompts, plan.rests, strict=True)
    ]
    ttft_s: dict[str, list[float]] = {name: [] for name in (LOCAL, *OBJECT_SPLITS)}
    with tempfile.TemporaryDirectory(prefix="kv-workbench-split-") as folder:
        _fill(model, plan, folder, [prompt[: plan.prefix_tokens + 1] for prompt in prompts])
        _run(model, plan, folder, prompts, warm, LOCAL)  # the first of all is slower
        fetched = set()
        for _ in range(plan.repeats):
            for split, seconds in ttft_s.items():
                mean_s, num_tokens = _run(model, plan, folder, prompts, warm, split)
                seconds.append(mean_s)
                fetched.add(num_tokens)
    local = median(ttft_s[LOCAL])
    added = {split: median(ttft_s[split]) - local for split in OBJECT_SPLITS}
    told = ", ".join(f"{split} {seconds * 1e3:,.0f} ms" for split, seconds in added.items())
    progress(f"objects behind {plan.link_mb_s:g} MB/s add to the first tokens: {told}")
    note = (
        f"mean of {count} requests at once, prefixes of {plan.prefix_tokens} tokens in objects "
        f"behind {plan.link_mb_s:g} MB/s, rests of {', '.join(map(str, plan.rests))}; without the "
        f"throttle {local * 1e3:,.0f} ms; median of {plan.repeats}; tokens fetched "
        f"{', '.join(map(str, sorted(fetched)))}"
    )
    figures = [
        Figure(
            name=f"object_added_ttft_ms_{split}",
            value=seconds * 1e3,
            unit="ms",
            provenance="throttled",
            note=note,
        )
        for split, seconds in added.items()
    ]
    if min(added["equal"], added["slack"]) <= 0:
        why = "the throttle added nothing that could be measured"
        return [*figures, Figure(name="object_split_ratio", value=None, note=why)]
    return [
        *figures,
        Figure(
            name="object_split_ratio",
            value=added["equal"] / added["slack"],
            provenance="throttled",
            note="added by equal shares over added by slack; ObjectCache: 1.2-1.8",
        ),
    ]


def _settings(plan: SplitPlan, folder: str) -> dict[str, Any]:
    longest = max(plan.prefix_tokens + max(plan.rests), plan.warm_tokens)
    return {
        "model.max_model_len": longest + 64,
        "cache.hbm_budget_mib": plan.hbm_mib,
        "scheduling.max_num_seqs": len(plan.rests),
        "scheduling.token_budget": 256,
        "scheduling.chunk_tokens": 256,
        "tiers.dram_mib": plan.dram_mib,
        "tiers.object_url": folder,
        "tiers.object_mib": 4 * plan.dram_mib,
        "tiers.gate": False,
    }


def _engine(model: LoadedModel, settings: dict[str, Any]) -> Engine:
    engine = Engine(replace_settings(EngineConfig(), settings), model)
    engine.retainer.for_display = False
    return engine


def _fill(model: LoadedModel, plan: SplitPlan, folder: str, prefixes: list[list[int]]) -> None:
    engine = _engine(model, _settings(plan, folder) | {"tiers.write": "through"})
    for prefix in prefixes:
        submit(engine, prefix, 1)
        while engine.has_work():
            engine.step()
    engine.stack.pool.drop_idle_rows()
    engine.hierarchy.wait_io(WAIT_S)
    engine.close()


def _run(
    model: LoadedModel, plan: SplitPlan, folder: str, prompts: list[list[int]], warm: list[int],
    split: str,
) -> tuple[float, int]:  # fmt: skip
    """Mean seconds to the first tokens of requests that come at once, and tokens fetched."""
    changes: dict[str, Any] = {}
    if split != LOCAL:
        changes = {"tiers.object_split": split, "tiers.object_throttle_mb_s": plan.link_mb_s}
    engine, clock = _engine(model, _settings(plan, folder) | changes), RealClock()
    submit(engine, warm[: plan.warm_tokens], 1)
    while engine.has_work():
        engine.step()
    engine.hierarchy.wait_io(WAIT_S)
    start_s = clock.now_s()
    ids = {submit(engine, prompt, 1) for prompt in prompts}
    first_s = []
    while engine.has_work():
        for output in engine.step():
            if output.request_id in ids and output.new_token_ids:
                ids.remove(output.request_id)
                first_s.append(clock.now_s() - start_s)
    fetched = sum(gain.num_tokens for gain in engine.fetch_counters.gains.values())
    engine.close()
    return sum(first_s) / len(prompts), fetched
