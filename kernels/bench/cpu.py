"""Times of the torch backend on the CPU: plan, write, gather, dequantisation, attention."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from bench.setup import SOFTMAX_SCALE, Cache, figure, make_cache
from kvkernels import reference
from kvkernels.api import Scratch, Timers
from kvkernels.layout import FORMATS

PARTS = ("plan", "write", "attend", "attend_cpu_time", "gather", "dequant", "products")


def stepper(cache: Cache) -> Callable[[], list[float]]:
    """Return a function that does one decode step of all layers and gives ms of each part."""
    scratch = Scratch()
    layers = range(cache.spec.num_layers)

    def attend(plan: Any) -> None:
        for layer in layers:
            reference.attend(
                cache.q, cache.arena, plan, layer, softmax_scale=SOFTMAX_SCALE, state=cache.state
            )

    def step() -> list[float]:
        marks = [time.perf_counter()]
        plan = reference.make_plan(cache.spec, cache.tables, scratch=scratch)
        marks.append(time.perf_counter())
        for layer in layers:
            reference.write_kv(cache.arena, plan, layer, cache.k, cache.v, cache.state)
        marks.append(time.perf_counter())
        used = time.process_time()  # less disturbed by other processes than the clock
        attend(plan)
        used = time.process_time() - used
        marks.append(time.perf_counter())
        timers = Timers()
        attend(reference.make_plan(cache.spec, cache.tables, scratch=scratch, timers=timers))
        parts = (timers.gather_s, timers.dequant_s, timers.attention_s)
        return [*(np.diff(marks) * 1e3), used * 1e3, *(part * 1e3 for part in parts)]

    return step


def figures(rounds: int = 15) -> list[dict[str, Any]]:
    """Medians over interleaved rounds, so that all formats see the same disturbances."""
    cases = {}
    for requests, tokens in ((8, 256), (1, 64), (1, 256), (1, 1024)):
        for fmt in FORMATS:
            dtype = torch.float32 if fmt == "fp32" else torch.bfloat16
            cache = make_cache(fmt, requests, tokens, 1, "cpu", dtype)
            cases[f"{fmt}_{requests}x{tokens}"] = stepper(cache)
    samples: dict[str, list[list[float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, step in cases.items():
            samples[name].append(step())
    out = []
    for name, rows in samples.items():
        middle, least = np.median(rows[2:], 0), np.min(rows[2:], 0)
        for part, value, low in zip(PARTS, middle, least, strict=True):
            note = f"30 layers, 9 query and 3 KV heads of 64, blocks of 16; least {low:.3g}"
            out.append(figure(f"cpu_{part}_ms_{name}", float(value), "ms", note))
    return out
