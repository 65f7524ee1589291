"""Part of `workbench bench tiers`: three write policies and two disk layouts on one workload.

Two prompts come again and again, so that DRAM keeps them; four others come in between, which it
has no room for. What each policy and layout writes to the disk and reads from it, in bytes and
I/Os, and how long requests waited for pages, at equal hits.
Source of the policies: SGLang HiCache; of the layouts: FlexKV.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import bench_model, median, random_prompts, submit
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel
from workbench.settings.tiers import DISK_LAYOUTS, WRITES

Progress = Callable[[str], None]
ORDER = (0, 1, 2, 0, 1, 3, 0, 1, 4, 0, 1, 5, 0, 1, 2, 0, 1, 3)  # of prompts: two are hot
WAIT_S = 60.0


@dataclass(frozen=True)
class WritePlan:
    """Sizes; `random_layers` > 0 takes a small random model. Budgets in MiB."""

    prompt_tokens: int = 256
    hbm_mib: float = 9.0
    dram_mib: float = 24.0
    disk_mib: float = 96.0
    repeats: int = 3
    random_layers: int = 0


QUICK = WritePlan(
    prompt_tokens=512, hbm_mib=0.3, dram_mib=0.53, disk_mib=8.0, repeats=1, random_layers=2
)


@dataclass(frozen=True)
class Cost:
    """What one run of the workload took: bytes and I/Os of the disk, seconds waited, hit tokens.

    `written_bytes` are of pages; I/Os of their table count, too.
    """

    written_bytes: int
    read_bytes: int
    num_ios: int
    stall_s: float
    num_hit_tokens: int


def measure_writes(progress: Progress, plan: WritePlan) -> list[Figure]:
    """Four figures of each policy and layout, and whether hits were equal."""
    model = bench_model("bf16", plan.random_layers)
    prompts = random_prompts(model.arch.vocab_size, max(ORDER) + 1, plan.prompt_tokens, 0)
    cells = [(write, layout) for write in WRITES for layout in DISK_LAYOUTS]
    runs: dict[tuple[str, str], list[Cost]] = {cell: [] for cell in cells}
    for _ in range(plan.repeats):
        for cell in cells:
            runs[cell].append(_run(model, plan, prompts, *cell))
    figures = [figure for cell in cells for figure in _figures(progress, *cell, runs[cell])]
    hits = sorted({cost.num_hit_tokens for costs in runs.values() for cost in costs})
    note = (
        f"{len(ORDER)} requests of {len(prompts)} prompts of {plan.prompt_tokens} tokens; "
        f"hit tokens {', '.join(map(str, hits))}; HBM {plan.hbm_mib:g}, DRAM {plan.dram_mib:g}, "
        f"disk {plan.disk_mib:g} MiB"
    )
    return [*figures, Figure(name="write_equal_hits", value=int(len(hits) == 1), note=note)]


def _figures(progress: Progress, write: str, layout: str, costs: list[Cost]) -> list[Figure]:
    def middle(name: str) -> float:
        return median(getattr(cost, name) for cost in costs)

    mib = 2**20
    told = {
        "written_mib": (middle("written_bytes") / mib, "MiB"),
        "read_mib": (middle("read_bytes") / mib, "MiB"),
        "ios": (int(middle("num_ios")), ""),
        "stall_ms": (middle("stall_s") * 1e3, "ms"),
    }
    row = ", ".join(f"{name} {value:,.0f}" for name, (value, _) in told.items())
    progress(f"write {write}, {layout}: {row}")
    note = f"tiers.write = {write}, tiers.disk_layout = {layout}; median of {len(costs)}"
    return [
        Figure(name=f"write_{write}_{layout}_{name}", value=value, unit=unit, note=note)
        for name, (value, unit) in told.items()
    ]


def _run(
    model: LoadedModel, plan: WritePlan, prompts: list[list[int]], write: str, layout: str
) -> Cost:
    with tempfile.TemporaryDirectory(prefix="kv-workbench-writes-") as folder:
        engine = _engine(model, plan, folder, write, layout)
        for number in ORDER:
            submit(engine, prompts[number], 1)
            while engine.has_work():
                engine.step()
            engine.hierarchy.wait_io(WAIT_S)  # so that no hit depends on how fast a write was
        engine.step()
        gains = engine.fetch_counters.gains.values()
        disk = engine.hierarchy.stats().tiers[1]
        assert disk.ios is not None  # a disk counts
        ios = disk.ios
        cost = Cost(
            disk.stored_bytes,
            ios.read_bytes,
            ios.num_reads + ios.num_writes,
            sum(gain.fetch_s for gain in gains),
            engine.metrics.hit_tokens,
        )
        engine.close()
    return cost


def _engine(model: LoadedModel, plan: WritePlan, folder: str, write: str, layout: str) -> Engine:
    settings: dict[str, Any] = {
        "model.max_model_len": plan.prompt_tokens + 64,
        "cache.hbm_budget_mib": plan.hbm_mib,
        "scheduling.max_num_seqs": 1,
        "scheduling.token_budget": plan.prompt_tokens,
        "scheduling.chunk_tokens": plan.prompt_tokens,
        "tiers.dram_mib": plan.dram_mib,
        "tiers.disk_mib": plan.disk_mib,
        "tiers.disk_path": folder,
        "tiers.gate": False,
        "tiers.write": write,
        "tiers.disk_layout": layout,
    }
    engine = Engine(replace_settings(EngineConfig(), settings), model)
    engine.retainer.for_display = False
    return engine
