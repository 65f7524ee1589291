"""Part of `workbench bench tiers`: how much of a load by layers hides behind the layers computed.

A long prefix lies on the disk. Its request is served from HBM (what computing takes), after a load
as a whole (serial), and with a load by layers (measured), one after another, on one compute thread:

    overlap efficiency = (serial - measured) / (serial - ideal)
    ideal = max(compute, serial - compute)

It says something only where computing and transfer take about as long: elsewhere the shorter of the
two is all that can be hidden, and noise of the longer one hides it.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.lab.bench_runs import bench_model, median, random_prompts, submit
from workbench.lab.figures import Figure, Provenance
from workbench.model.load import LoadedModel

Progress = Callable[[str], None]
WAIT_S = 60.0
LONGER = 1.3
MOST_APART = 2.0  # compute over transfer, and transfer over compute
LOOKS = 3  # at each number of new tokens, before the measurement
SUFFIXES = (
    4,
    8,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    256,
)  # new tokens, the more the longer computing takes


@dataclass(frozen=True)
class OverlapPlan:
    """Sizes; `random_layers` > 0 takes a small random model."""

    prefix_tokens: int = 2048
    repeats: int = 9
    random_layers: int = 0


QUICK = OverlapPlan(prefix_tokens=256, repeats=1, random_layers=4)


@dataclass(frozen=True)
class Times:
    """Medians in seconds to the first token: from HBM, after a whole load, with one by layers."""

    compute_s: float
    serial_s: float
    layered_s: float

    @property
    def transfer_s(self) -> float:
        """What the load adds where nothing overlaps."""
        return self.serial_s - self.compute_s

    @property
    def ratio(self) -> float:
        """Compute over transfer; infinite where nothing had to be transferred."""
        return self.compute_s / self.transfer_s if self.transfer_s > 0 else math.inf

    @property
    def balanced(self) -> bool:
        """Whether neither takes more than `MOST_APART` times as long as the other."""
        return 1 / MOST_APART <= self.ratio <= MOST_APART

    @property
    def efficiency(self) -> float:
        """Share of what overlap could hide at best that it hid."""
        ideal_s = max(self.compute_s, self.transfer_s)
        return (self.serial_s - self.layered_s) / (self.serial_s - ideal_s)


def measure_overlap(progress: Progress, plan: OverlapPlan) -> list[Figure]:
    """`overlap_efficiency_disk` and `overlap_efficiency_throttled`, with their times."""
    model = bench_model("bf16", plan.random_layers)
    with tempfile.TemporaryDirectory(prefix="kv-workbench-overlap-") as folder, one_thread():
        bench = _Bench(model, plan, folder)
        suffix = bench.balance()
        disk = bench.measure(suffix)
        mb_s = bench.prefix_bytes / disk.compute_s / 1e6
        bench.engine.apply({"tiers.disk_throttle_mb_s": mb_s})
        slowed = bench.measure(suffix)
        num_slices = bench.engine.fetcher.layers.num_slices
        bench.engine.close()
    hidden = f"{_share(disk)} on the disk, {_share(slowed)} throttled"
    progress(f"loads by layers: share of the transfer that is hidden: {hidden}")
    kinds: list[tuple[str, Times, Provenance, str]] = [
        ("disk", disk, "measured", ""), ("throttled", slowed, "throttled", f", {mb_s:.0f} MB/s"),
    ]  # fmt: skip
    return [
        overlap_figure(
            name, times, provenance,
            f"{plan.prefix_tokens} tokens from disk{more}, {suffix} computed: "
            f"compute {times.compute_s * 1e3:.0f} ms, transfer {times.transfer_s * 1e3:.0f}, "
            f"serial {times.serial_s * 1e3:.0f}, by {num_slices} slices "
            f"{times.layered_s * 1e3:.0f}; layers first on the disk, one compute thread, "
            f"medians of {plan.repeats}",
        )
        for name, times, provenance, more in kinds
    ]  # fmt: skip


def overlap_figure(name: str, times: Times, provenance: Provenance, note: str) -> Figure:
    """The efficiency with the ratio that it depends on; no value where that is out of bounds."""
    told = f"compute / transfer {times.ratio:.2f}"
    if not times.balanced:
        told += f", asked {1 / MOST_APART:g} to {MOST_APART:g}: not measured"
    return Figure(
        name=f"overlap_efficiency_{name}", value=times.efficiency if times.balanced else None,
        provenance=provenance, note=f"{told}; {note}",
    )  # fmt: skip


def _share(times: Times) -> str:
    return f"{times.efficiency:.2f}" if times.balanced else f"n/a (ratio {times.ratio:.2f})"


@contextmanager
def one_thread() -> Iterator[None]:
    """One compute thread, so that a core is left for transfers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Bench:
    def __init__(self, model: LoadedModel, plan: OverlapPlan, folder: str) -> None:
        small = bool(plan.random_layers)
        longest = plan.prefix_tokens + SUFFIXES[-1] + 64
        settings: dict[str, Any] = {
            "model.max_model_len": longest,
            "cache.hbm_budget_mib": 4.0 if small else 128.0,
            "scheduling.token_budget": longest, "scheduling.chunk_tokens": longest,
            "tiers.dram_mib": 4.0 if small else 128.0, "tiers.disk_mib": 16.0 if small else 512.0,
            "tiers.disk_path": folder, "tiers.gate": False, "tiers.write": "through",
            "tiers.disk_layout": "layer_first",
        }  # fmt: skip
        self.plan, self.vocab = plan, model.arch.vocab_size
        self.engine = Engine(replace_settings(EngineConfig(), settings), model)
        self.engine.retainer.for_display = False
        (self.prefix,) = random_prompts(self.vocab, 1, plan.prefix_tokens, 0)
        self._seed = 1
        self.ttft_s(8)
        self.engine.hierarchy.wait_io(WAIT_S)

    @property
    def prefix_bytes(self) -> int:
        """Bytes of the prefix's pages."""
        stack = self.engine.stack
        rows = self.plan.prefix_tokens // self.engine.config.cache.block_size
        return rows * sum(spec.page_bytes for spec in stack.specs.full)

    def ttft_s(self, suffix: int) -> float:
        """Serve the prefix with so many new tokens behind it; seconds to the first token."""
        engine = self.engine
        self._seed += 1
        (new,) = random_prompts(self.vocab, 1, suffix, self._seed)
        started_s = engine.clock.now_s()
        submit(engine, self.prefix + new, 1)
        while engine.has_work():
            engine.step()
        return engine.clock.now_s() - started_s

    def fetched_s(self, suffix: int, load: str) -> float:
        """The same with the prefix on the disk alone."""
        engine = self.engine
        engine.apply({"tiers.load": load})
        engine.stack.pool.drop_idle_rows()
        engine.hierarchy.wait_io(WAIT_S)
        dram = engine.hierarchy.mover.dram
        for entry in dram.all_entries():
            dram.remove(entry)
        return self.ttft_s(suffix)

    def balance(self) -> int:
        """New tokens for which computing takes `LONGER` times the transfer, as near as may be."""
        nearest, apart = SUFFIXES[0], math.inf
        for suffix in SUFFIXES:
            runs = [
                (self.fetched_s(suffix, "whole"), self.ttft_s(suffix))
                for _ in range(min(LOOKS, self.plan.repeats))
            ]
            serial_s, compute_s = (median(each) for each in zip(*runs, strict=True))
            ratio = Times(compute_s, serial_s, serial_s).ratio
            if abs(math.log(ratio / LONGER)) < apart:
                nearest, apart = suffix, abs(math.log(ratio / LONGER))
            if ratio > MOST_APART * LONGER and ratio < math.inf:
                break  # more tokens only take longer
        return nearest

    def measure(self, suffix: int) -> Times:
        """Medians of all three, alternating."""
        serial, compute, layered = [], [], []
        for _ in range(self.plan.repeats):
            serial.append(self.fetched_s(suffix, "whole"))
            compute.append(self.ttft_s(suffix))
            layered.append(self.fetched_s(suffix, "layerwise"))
        return Times(median(compute), median(serial), median(layered))
