"""A published trace through the cache core: block pool and prefix index, without model and bytes.

Every block of a request is looked for, every miss is cached. *The trace's order*: a block is held
and let go at once, so that the free list is an LRU list of touches, whose hit rates are published.
*The engine's order*: a request holds all its blocks and frees its tail first.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.cache.block_pool import BlockPool
from workbench.cache.eviction_order import RankedRows
from workbench.cache.geometry import build_geometry
from workbench.cache.keys import PrefixKey
from workbench.cache.prefix_index import Row
from workbench.engine.builtin import builtin_registry
from workbench.engine.prefill_fit import PrefillFit
from workbench.lab.figures import Figure
from workbench.lab.reuse_bench import belady, dense, replay
from workbench.lab.traces import read_requests

CAPACITIES = (1_000, 3_000, 10_000, 30_000, 50_000)
POLICY_CAPACITY = 3_000
# Prefix-hit rates in blocks of 512 tokens under LRU, every miss cached, computed apart from this
# project for the published Mooncake traces; the last is that of an infinite cache.
PUBLISHED: dict[str, tuple[float, ...]] = {
    "mooncake_conversation": (0.0445, 0.0650, 0.2112, 0.3257, 0.3546, 0.3664),
    "mooncake_synthetic": (0.0825, 0.1878, 0.4235, 0.6242, 0.6396, 0.6396),
}
QUICK_REQUESTS, QUICK_CAPACITIES = 60, (100, 300)
Progress = Callable[[str], None]


def _ignore(what: Any) -> None:
    """Nobody listens."""


def measure_trace(progress: Progress, path: Path, *, quick: bool = False) -> list[Figure]:
    """Hit rates of both orders at each capacity, their error, then each policy beside Belady."""
    requests = read_requests(path)[: QUICK_REQUESTS if quick else None]
    references = dense([block for request in requests for block in request])
    infinite = 1.0 - len(np.unique(references)) / len(references)
    published = () if quick else PUBLISHED.get(path.stem, ())
    capacities = QUICK_CAPACITIES if quick else CAPACITIES
    figures, errors = [], [abs(infinite - published[-1])] if published else []
    for at, capacity in enumerate(capacities):
        rate, own = touched_in_order(requests, capacity), tails_first(requests, capacity)
        progress(f"{path.stem}, {capacity} blocks: {rate:.4f}, tails first {own:.4f}")
        told = f"{published[at]:.4f} published" if published else "no published rate"
        errors += [abs(rate - published[at])] if published else []
        figures += [
            Figure(name=f"trace_hit_rate_{capacity}", value=rate, note=f"{path.stem}, LRU; {told}"),
            Figure(
                name=f"trace_hit_rate_tails_first_{capacity}",
                value=own,
                note=f"{path.stem}, as the engine frees: a request's tail goes first",
            ),
        ]
    figures.append(Figure(name="trace_hit_rate_infinite", value=infinite, note=path.stem))
    figures.insert(0, _error(errors, path.stem))
    return figures + _policies(progress, references, path.stem, quick)


def without_trace(*, quick: bool = False) -> list[Figure]:
    """The same figures without values: no trace was given."""
    names = ["oracle_error", "hit_rate_infinite"]
    for capacity in QUICK_CAPACITIES if quick else CAPACITIES:
        names += [f"hit_rate_{capacity}", f"hit_rate_tails_first_{capacity}"]
    orders = ["belady", *builtin_registry().names("eviction")]
    names += [f"policy_{order.replace('-', '_')}" for order in orders]
    note = "no trace: give --trace FILE (a Mooncake trace with hash_ids)"
    return [Figure(name=f"trace_{name}", value=None, note=note) for name in names]


def _error(errors: list[float], name: str) -> Figure:
    if not errors:
        note = f"no hit rates are published for {name}, or not for a part of it"
        return Figure(name="trace_oracle_error", value=None, note=note)
    note = f"largest of {len(errors)} capacities against the published rates of {name}"
    return Figure(name="trace_oracle_error", value=round(max(errors), 6), note=note)


def _policies(progress: Progress, references: np.ndarray, name: str, quick: bool) -> list[Figure]:
    capacity = QUICK_CAPACITIES[-1] if quick else POLICY_CAPACITY
    rates = {"belady": belady(references, capacity)}
    for order in builtin_registry().names("eviction"):
        rates[order] = replay(references, capacity, order)
        progress(f"{name}, {capacity} blocks, {order}: {rates[order]:.4f}")
    return [
        Figure(
            name=f"trace_policy_{order.replace('-', '_')}",
            value=rate,
            note=f"{name}, {capacity} blocks" + (", the bound" if order == "belady" else ""),
        )
        for order, rate in rates.items()
    ]


def touched_in_order(
    requests: Sequence[Sequence[int]],
    capacity: int,
    order: str = "lru",
    *,
    num_groups: int = 1,
    gone: Callable[[int], object] = _ignore,
) -> float:
    """Share of all references that are found, each block touched in the trace's order.

    `order`: which cached one goes first; `gone` is told of each. `num_groups`: pages of a block.
    """
    pool, cls = _pool(capacity * num_groups, lambda row: gone(row.token_ids[0]))
    if order != "lru":
        made = builtin_registry().create("eviction", order, len(pool.row_of))
        pool.ranked = RankedRows(pool, made, PrefillFit().work)
    hits = total = 0
    for number, request in enumerate(requests):
        pool.step = number
        total += len(request)
        for block in request:
            found, held = _take(pool, cls, block, num_groups)
            hits += found
            pool.free(held)
    return hits / max(1, total)


def tails_first(requests: Sequence[Sequence[int]], capacity: int) -> float:
    """The same where a request holds all its blocks until its end, and frees the last one first.

    A request of more blocks than there are frees what it holds when nothing else can go.
    """
    pool, cls = _pool(capacity)
    hits = total = 0
    for number, request in enumerate(requests):
        pool.step = number
        total += len(request)
        held: list[int] = []
        for block in request:
            if len(held) == capacity:
                pool.free(reversed(held))
                held = []
            found, taken = _take(pool, cls, block)
            hits += found
            held += taken
        pool.free(reversed(held))
    return hits / max(1, total)


def _take(pool: BlockPool, cls: int, block: int, num_groups: int = 1) -> tuple[bool, list[int]]:
    """Hold the cached pages of an id, or cache it anew; whether it was there, and which."""
    key: PrefixKey = block.to_bytes(32, "big")
    row = pool.index.get(key)
    if row is not None:
        for page in row.blocks:
            pool.touch(page)
        return True, list(row.blocks)
    (taken,) = pool.allocate([(cls, num_groups)])
    pool.publish(Row(key, None, tuple(taken), (block,), "bf16", key, root_key=b"trace"))
    return False, taken


def _pool(capacity: int, before_evict: Callable[[Row], object] = _ignore) -> tuple[BlockPool, int]:
    geometry = build_geometry("model", num_layers=1, num_kv_heads=1, head_dim=16)
    spec = geometry.groups[0].page_spec(16, 16, "bf16", "bf16")
    pool = BlockPool(
        num_slabs=1, slab_bytes=capacity * spec.page_bytes, smallest_page_bytes=spec.page_bytes,
        index=builtin_registry().create("index", "hash", _ignore, _ignore),
        before_evict=before_evict,
    )  # fmt: skip
    return pool, pool.class_of(spec)
