"""What a step computed becomes part of the cache: committed, sealed where full, published."""

import functools
from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.sealing import seal
from workbench.engine.runner import ForwardBatch

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


def commit(engine: "Engine", batch: ForwardBatch) -> None:
    """Count the batch's tokens as stored, and let full blocks be found if prefixes are shared."""
    manager = engine.stack.manager
    for request, count in zip(batch.requests, batch.q_lens.tolist(), strict=True):
        manager.commit(request, count)
        if manager.seals:
            seal(manager, request, functools.partial(_encode, engine))
        engine.metrics.computed(request, count)
        request.num_computed_tokens += count
        if engine.scheduler.prefix_caching:
            manager.publish(request, request.num_computed_tokens)


def _encode(engine: "Engine", group: int, source: list[int], target: list[int]) -> None:
    """Encode full pages of an open class into pages of their final one."""
    stack = engine.stack
    pool = stack.pool
    old = pool.classes[pool.page_class(source[0])]
    stack.store.recode(
        group,
        stack.store.gather(pool.offset[source], old),
        old,
        stack.specs.full[group],
        pool.offset[target],
        np.full(len(source), engine.config.cache.block_size, np.int64),
    )
