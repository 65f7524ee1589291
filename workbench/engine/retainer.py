"""Attention mass of running requests, and the retention policy that reads it after each step."""

from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.retention import RetentionPolicy, StoredPages
from workbench.config import EngineConfig
from workbench.engine.runner import ForwardBatch
from workbench.request import Request
from workbench.structural.retention.observer import MassObserver

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

MASS_EVERY = 4  # steps between observations when only the display wants them


class Retainer:
    """Observes what each token is read for, and lets the policy evict full pages."""

    def __init__(self, engine: "Engine", policy: RetentionPolicy) -> None:
        self._engine = engine
        self.policy = policy
        self.observers: dict[str, MassObserver] = {}
        self.for_display = True

    def add(self, request: Request) -> None:
        """Begin to observe a request."""
        config = self._engine.config
        self.observers[request.request_id] = MassObserver(
            len(self._engine.stack.specs), config.model.max_model_len + config.cache.block_size
        )

    def restart(self) -> None:
        """The cache was laid out anew and holds nothing: observe all requests from the start."""
        for request in self._engine.requests.values():
            self.add(request)

    def wants_mass(self, step: int) -> bool:
        """Whether the kernels should return attention mass at this step."""
        return self.policy.needs_mass or (self.for_display and step % MASS_EVERY == 0)

    def max_slots(self, num_tokens: int) -> int:
        """Slots a paged request of this length needs at most at any moment."""
        return _paged_slots(self._engine.config, num_tokens)

    def resume(self, request: Request) -> None:
        """A preempted request has tables again: what they leave out is evicted, nothing else."""
        observer = self.observers[request.request_id]
        observer.forget_evictions()
        blocks = self._engine.stack.manager.requests[request.request_id]
        size = self._engine.stack.manager.block_size
        stored = np.zeros((len(blocks.table), request.num_computed_tokens + size), bool)
        for group, count in enumerate(blocks.num_pages):
            tokens = blocks.page_pos[group, :count, None] + np.arange(size)
            stored[group, tokens[tokens < stored.shape[1]]] = True
        observer.restore(stored[:, : request.num_computed_tokens])

    def observe(self, batch: ForwardBatch, mass: np.ndarray) -> None:
        """Add a step's mass, float [R, num_groups, T] by slot, before the step is committed."""
        pool, manager = self._engine.stack.pool, self._engine.stack.manager
        size = manager.block_size
        for row, request in enumerate(batch.requests):
            blocks = manager.requests[request.request_id]
            count = int(batch.q_lens[row])
            stored = blocks.stored_len + count
            pages = -(-stored // size)
            first = blocks.page_pos[:, : int(pages.max())]
            positions = (first[..., None] + np.arange(size)).reshape(len(first), -1)
            observer = self.observers[request.request_id]
            observer.observe(positions, stored, mass[row, :, : positions.shape[1]], count)
            held = np.arange(first.shape[1]) < pages[:, None]
            rates = observer.page_rates(first, size)
            pool.mass[blocks.table[:, : first.shape[1]][held]] = rates[held]

    def retain(self, request: Request) -> None:
        """Evict what the policy chooses from a running request."""
        settings = self._engine.config.retention
        if settings.policy == "none":
            return
        manager = self._engine.stack.manager
        size = manager.block_size
        observer = self.observers[request.request_id]
        blocks = manager.requests[request.request_id]
        full = blocks.stored_len // size
        first = blocks.page_pos[:, : int(full.max())]
        rates = observer.page_rates(first, size)
        freed = dropped = 0
        for group, count in enumerate(full):
            pages = StoredPages(
                first[group, :count],
                rates[group, :count],
                int(blocks.stored_len[group]),
                request.num_computed_tokens,
                size,
            )
            chosen = self.policy.choose(pages, settings)
            if chosen:
                observer.mark_evicted(group, first[group, chosen], size)
                dropped = max(dropped, len(chosen) * size)
                freed += manager.evict_pages(request, group, chosen)
        if dropped:
            self._engine.log.tell(
                "retain",
                request.request_id,
                num_pages=freed,
                num_tokens=dropped,
                policy=settings.policy,
            )


def slots_needed(config: EngineConfig, num_tokens: int, longest: int) -> int:
    """Slots a request needs at most at any moment to go on under a config.

    `num_tokens`: its length now; `longest`: its length at the end, which a contiguous cache
    reserves at once.
    """
    if config.cache.allocation == "contiguous":
        return min(longest, config.model.max_model_len)
    return _paged_slots(config, num_tokens)


def _paged_slots(config: EngineConfig, num_tokens: int) -> int:
    settings = config.retention
    if settings.policy == "none":
        return num_tokens
    budget = max(settings.budget_tokens, settings.sink_tokens + settings.window_tokens)
    return min(num_tokens, budget + config.scheduling.chunk_tokens + 2 * config.cache.block_size)
