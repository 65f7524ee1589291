"""`workbench bench reuse`: hit rate of each eviction order, and hit tokens of each prefix index.

The trace is a list of block ids; every miss is cached, and the order says what goes. Belady, which
knows the future, is the bound. Without a trace file a seeded synthetic one is used: chats that
come back, among documents that are read once. Hit tokens are counted on the trace's prompts, if
there is one, on chats under one system prompt, and on chats of several turns.
"""

import heapq
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from workbench.cache.eviction_order import EvictionOrder
from workbench.engine.builtin import builtin_registry
from workbench.errors import RequestError
from workbench.lab.figures import Figure
from workbench.lab.reuse_hits import (
    CHAT_BLOCK_SIZES,
    TRACE_BLOCK_SIZES,
    chat_prompts,
    figures_of,
    trace_prompts,
    turn_prompts,
)
from workbench.lab.traces import read_references
from workbench.model.load import load_model
from workbench.model.random_launch import byte_tokenizer

CAPACITIES = (1000, 3000)
QUICK = 4000  # references


def measure(
    progress: Callable[[str], None],
    *,
    trace: Path | None = None,
    capacities: tuple[int, ...] = CAPACITIES,
    max_references: int = 60_000,
    max_prompts: int = 2000,
    quick: bool = False,
) -> list[Figure]:
    """Hit rate of every registered order, and of Belady, at each capacity in blocks; hit tokens."""
    if any(capacity < 1 for capacity in capacities):
        raise RequestError(f"capacities {list(capacities)}: each must be at least 1 block")
    found = synthetic(40_000) if trace is None else read_references(trace)
    source = "synthetic chats and documents" if trace is None else trace.name
    references = dense(found[: QUICK if quick else max_references])
    provenance: str = "modelled" if trace is None else "measured"
    figures = []
    for capacity in capacities:
        rates = {"belady": belady(references, capacity)}
        for name in builtin_registry().names("eviction"):
            rates[name] = replay(references, capacity, name)
            progress(f"{source}, {capacity} blocks, {name}: {rates[name]:.4f}")
        figures += [
            Figure(
                name=f"hit_rate_{name.replace('-', '_')}_{capacity}",
                value=rate,
                provenance=provenance,  # type: ignore[arg-type]
                note=f"{source}, {len(references):,} references, {capacity:,} blocks",
            )
            for name, rate in rates.items()
        ]
    return figures + _hit_figures(trace, max_prompts, progress, quick)


def _hit_figures(
    trace: Path | None, max_prompts: int, progress: Callable[[str], None], quick: bool
) -> list[Figure]:
    """Hit tokens of hash and radix, with partial hits and without, on the trace and on chats."""
    figures = []
    if trace is not None:
        prompts = trace_prompts(trace, max_prompts)
        source = f"{trace.name}, lengths / 32"
        figures += figures_of("trace", prompts, TRACE_BLOCK_SIZES, source, progress, quick=quick)
    tokenizer = byte_tokenizer() if quick else load_model().tokenizer
    counted = "one token a byte" if quick else "default model's tokenizer"
    for name, workload, prompts in (
        ("chat", "shared_chat", chat_prompts(tokenizer)),
        ("turns", "multi_turn", turn_prompts(tokenizer)),
    ):
        source = f"{workload}, {counted}"
        figures += figures_of(name, prompts, CHAT_BLOCK_SIZES, source, progress, quick=quick)
    return figures


def _ignore(block: int) -> None:
    """Nobody asks what was evicted."""


def dense(references: list[int]) -> np.ndarray:
    """Ids renumbered from 0, int64 [n]."""
    return np.unique(np.array(references, np.int64), return_inverse=True)[1]


def replay(
    references: np.ndarray, capacity: int, name: str, gone: Callable[[int], object] = _ignore
) -> float:
    """Share of the references that an order finds cached; `gone` is told what it evicts."""
    order: EvictionOrder = builtin_registry().create("eviction", name, capacity)
    slots, held = dict[int, int](), [-1] * capacity
    all_slots, hits = np.ones(capacity, bool), 0
    for block in references.tolist():
        slot = slots.get(block)
        if slot is not None:
            hits += 1
            order.hit(slot)
            continue
        slot = len(slots)
        if slot == capacity:
            slot = order.choose(all_slots)
            order.removed(slot)
            del slots[held[slot]]
            gone(held[slot])
        slots[block], held[slot] = slot, block
        order.inserted(slot, block, 1.0)
    return hits / max(1, len(references))


def belady(references: np.ndarray, capacity: int) -> float:
    """The most hits any order can have: the block whose next use is furthest away goes.

    Source: Belady 1966; a heap with stale entries left in.
    """
    count = len(references)
    following = np.full(count, count)
    last: dict[int, int] = {}
    for at in range(count - 1, -1, -1):
        following[at] = last.get(int(references[at]), count)
        last[int(references[at])] = at
    next_use: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    hits = 0
    for at, block in enumerate(references.tolist()):
        if block in next_use:
            hits += 1
        elif len(next_use) == capacity:
            while True:
                negative, gone = heapq.heappop(heap)
                if next_use.get(gone) == -negative:
                    del next_use[gone]
                    break
        next_use[block] = int(following[at])
        heapq.heappush(heap, (-next_use[block], block))
    return hits / max(1, count)


def synthetic(num_references: int, seed: int = 0) -> list[int]:
    """Chats whose growing prefix is read again at each turn, among documents read once."""
    rng = random.Random(seed)
    chats: list[list[int]] = [[] for _ in range(200)]
    references: list[int] = []
    fresh = 0
    while len(references) < num_references:
        if rng.random() < 0.15:
            blocks = list(range(fresh, fresh + rng.randrange(20, 120)))
            fresh = blocks[-1] + 1
        else:
            chat = chats[min(int(rng.paretovariate(0.8)), len(chats)) - 1]
            grown = list(range(fresh, fresh + rng.randrange(1, 4)))
            fresh = grown[-1] + 1
            chat += grown
            blocks = list(chat)
            if len(chat) > 60:
                chat.clear()
        references += blocks
    return references[:num_references]
