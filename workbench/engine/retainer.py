"""Attention mass of running requests, and the retention policy that reads it after each step."""

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.eviction import evict_pages, keep_slots
from workbench.cache.retention import RetentionPolicy, StoredTokens
from workbench.config import EngineConfig, RetentionSettings
from workbench.engine.packing import move_slots
from workbench.engine.query_watch import QueryWatch
from workbench.engine.runner import ForwardBatch
from workbench.engine.step_attention import SeeQueries
from workbench.request import Request
from workbench.structural.retention.budgets import split_budget
from workbench.structural.retention.observer import MassObserver
from workbench.structural.retention.selection import floor_tokens, pages_to_drop, slots_to_keep

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

MASS_EVERY = 4  # steps between observations when only the display or the tiers want them


class Retainer:
    """Observes what each token is read for, and lets the policy evict full pages."""

    def __init__(self, engine: "Engine", policy: RetentionPolicy) -> None:
        self._engine = engine
        self.policy = policy
        self.observers: dict[str, MassObserver] = {}
        self.queries = QueryWatch(engine)
        self.for_display = True

    def add(self, request: Request) -> None:
        """Begin to observe a request."""
        config = self._engine.config
        self.queries.forget(request.request_id)
        self.observers[request.request_id] = MassObserver(
            len(self._engine.stack.specs.full), config.model.max_model_len + config.cache.block_size
        )

    def restart(self) -> None:
        """The cache was laid out anew and holds nothing: observe all requests from the start."""
        for request in self._engine.requests.values():
            self.add(request)

    def wants_mass(self, step: int, batch: ForwardBatch) -> bool:
        """Whether the kernels should return attention mass at this step.

        Tiers want it at each prompt's last chunk, whose queries see all of it (as SnapKV's window
        does), and now and then after that: mass makes a step slower.
        """
        config = self._engine.config
        if self.policy.needs_mass or config.retention.merge == "cam":
            return True
        tiers = self._engine.hierarchy.mover.placer.needs_mass or config.tiers.retrieval != "all"
        if (self.for_display or tiers) and step % MASS_EVERY == 0:
            return True
        return tiers and _ends_a_prompt(batch)

    def watch(self, batch: ForwardBatch) -> SeeQueries | None:
        """Who looks at the queries of a step, if anybody does."""
        return self.queries.begin(batch) if self.policy.needs_queries else None

    def tail_tokens(self) -> int | None:
        """Last tokens of a prompt that form a step of their own, so that they are observed alone.

        None where nobody cares where a prompt ends. Those that are more than a chunk take several
        steps.
        """
        settings = self._engine.config.retention
        wanted = self.policy.tail_queries(settings)
        return None if not wanted and settings.when == "both" else wanted

    def max_slots(self, request: Request) -> int:
        """Slots a paged request needs at most at any moment as long as it is now."""
        return _paged_slots(
            self._engine.config, self.policy, request.num_tokens, request.num_prompt_tokens
        )

    def resume(self, request: Request) -> None:
        """A request has tables that leave tokens out: those are evicted, and nothing else."""
        observer = self.observers[request.request_id]
        observer.forget_evictions()
        blocks = self._engine.stack.manager.requests[request.request_id]
        stored = np.zeros((len(blocks.table), request.num_computed_tokens), bool)
        for group in range(len(stored)):
            tokens = blocks.pos[group, : blocks.num_pages[group] * blocks.block_size]
            stored[group, tokens[tokens < stored.shape[1]]] = True
        observer.restore(stored)

    def came_late(self, request: Request, page: int) -> None:
        """A page of a prefix that a request began without is in its table now."""
        size = self._engine.config.cache.block_size
        observer = self.observers[request.request_id]
        observer.evicted[:, page * size : (page + 1) * size] = False

    def observe(self, batch: ForwardBatch, mass: np.ndarray) -> None:
        """Add a step's mass, float [R, num_groups, T] by slot, before the step is committed."""
        pool, manager = self._engine.stack.pool, self._engine.stack.manager
        size = manager.block_size
        tail = self.policy.tail_queries(self._engine.config.retention)
        for row, request in enumerate(batch.requests):
            blocks = manager.requests[request.request_id]
            count = int(batch.q_lens[row])
            stored = blocks.stored_len + count
            pages = -(-stored // size)
            width = int(pages.max())
            positions = blocks.pos[:, : width * size]
            observer = self.observers[request.request_id]
            observer.observe(positions, stored, mass[row, :, : width * size], count)
            end, first = request.num_prompt_tokens, request.num_computed_tokens
            if end - tail <= first and first + count <= end:
                queries = range(first, first + count)
                observer.observe_window(positions, stored, mass[row, :, : width * size], queries)
            held = np.arange(width) < pages[:, None]
            rates = observer.page_rates(positions, stored, size)
            pool.mass[blocks.table[:, :width][held]] = rates[held]

    def observe_keys(self, batch: ForwardBatch, norms: np.ndarray) -> None:
        """Add the key lengths of a step's new tokens, float [N, num_groups]."""
        ends = np.cumsum(batch.q_lens)
        for row, request in enumerate(batch.requests):
            new = slice(int(ends[row] - batch.q_lens[row]), int(ends[row]))
            key_norm = self.observers[request.request_id].key_norm
            key_norm[:, batch.positions[new]] = norms[new].T

    def retain(self, request: Request) -> None:
        """Evict what the policy chooses from a running request."""
        settings = self._engine.config.retention
        if settings.policy == "none" or not _is_due(request, settings, self.policy):
            return
        manager, geometry = self._engine.stack.manager, self._engine.stack.geometry
        blocks = manager.requests[request.request_id]
        most = max(settings.budget_tokens, floor_tokens(settings))
        least = most if settings.split == "uniform" else floor_tokens(settings)
        if int(blocks.stored_len.max()) <= least:
            return
        views = self._views(request)
        scores = [self.policy.score(view, settings) for view in views]
        budgets = split_budget(geometry, views, scores, settings)
        freed = dropped = 0
        for group, (view, score) in enumerate(zip(views, scores, strict=True)):
            gone, pages = self._evict(request, group, view, score, int(budgets[group]))
            dropped, freed = max(dropped, gone), freed + pages
        if dropped:
            self._engine.log.tell(
                "retain",
                request.request_id,
                num_pages=freed,
                num_tokens=dropped,
                policy=settings.policy,
            )

    def _views(self, request: Request) -> list[StoredTokens]:
        """What the policy sees of each group."""
        manager = self._engine.stack.manager
        blocks, observer = manager.requests[request.request_id], self.observers[request.request_id]
        views = [
            observer.stored(
                group, blocks.positions(group), request.num_computed_tokens, manager.block_size
            )
            for group in range(len(manager.classes))
        ]
        if self.policy.needs_queries:
            expected = self.queries.expected(request)
            views = [
                replace(view, expected=scores) for view, scores in zip(views, expected, strict=True)
            ]
        return views

    def _evict(
        self, request: Request, group: int, view: StoredTokens, score: np.ndarray, budget: int
    ) -> tuple[int, int]:
        """(tokens that left one group's table, pages that became free)."""
        settings, manager = self._engine.config.retention, self._engine.stack.manager
        size = manager.block_size
        positions = view.positions.copy()  # the tables change below
        if settings.level == "page":
            drop = pages_to_drop(view, score, settings, budget)
            if not drop:
                return 0, 0
            gone = (np.array(drop)[:, None] * size + np.arange(size)).ravel()
            freed = evict_pages(manager, request, group, drop)
        else:
            kept = slots_to_keep(view, score, settings, budget)
            if kept is None:
                return 0, 0
            move = functools.partial(move_slots, self._engine, request, group)
            packed = keep_slots(manager, request, group, kept, move)
            if packed is None:
                return 0, 0  # no room for the copies of shared pages
            freed = packed
            gone = np.setdiff1d(np.arange(len(positions)), kept)
        self.observers[request.request_id].mark_evicted(group, positions[gone])
        return len(gone), freed


def _ends_a_prompt(batch: ForwardBatch) -> bool:
    return any(
        request.num_computed_tokens < request.num_prompt_tokens
        and request.num_computed_tokens + count >= request.num_prompt_tokens
        for request, count in zip(batch.requests, batch.q_lens.tolist(), strict=True)
    )


def _is_due(request: Request, settings: RetentionSettings, policy: RetentionPolicy) -> bool:
    """Whether a policy may act on the request after this step."""
    prompt = request.num_prompt_tokens
    if settings.when == "both":  # what judges by the end of the prompt has to wait for it
        return request.num_computed_tokens >= prompt or not policy.tail_queries(settings)
    if settings.when == "prefill":  # once, when the prompt is complete
        return request.num_computed_tokens == prompt
    return request.num_computed_tokens > prompt


def slots_needed(
    config: EngineConfig, policy: RetentionPolicy, *, num_tokens: int, prompt: int, longest: int
) -> int:
    """Slots a request needs at most at any moment to go on under a config and its policy.

    `num_tokens`: its length now, `prompt` of them the user's; `longest`: its length at the end,
    which a contiguous cache reserves at once.
    """
    if config.cache.allocation == "contiguous":
        return min(longest, config.model.max_model_len)
    return _paged_slots(config, policy, num_tokens, prompt)


def _paged_slots(
    config: EngineConfig, policy: RetentionPolicy, num_tokens: int, prompt: int
) -> int:
    settings = config.retention
    if settings.policy == "none" or settings.when != "both":  # the whole prompt is stored first
        return num_tokens
    budget = max(settings.budget_tokens, floor_tokens(settings))
    if policy.tail_queries(settings):
        budget = max(budget, prompt)  # here too
    return min(num_tokens, budget + config.scheduling.chunk_tokens + 2 * config.cache.block_size)
