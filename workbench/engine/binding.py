"""Hands settings that take effect at once to those who use them."""

from typing import TYPE_CHECKING

from workbench.cache.eviction_order import RankedRows
from workbench.engine.group_specs import max_open_pages, residual_pages, sink_pages
from workbench.engine.placing import bind_placement, bind_retrieval
from workbench.temporal.scheduling.prefetch import Patience

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

NO_HITS = 1 << 30  # tokens that a hit would have to leave to compute


def bind_settings(engine: "Engine") -> None:
    """Bring fetcher, scheduler, manager and pool to the engine's config."""
    cache, tiers = engine.config.cache, engine.config.tiers
    engine.fetcher.worth.gate, engine.fetcher.prefetch.policy = tiers.gate, tiers.prefetch
    engine.fetcher.prefetch.patience = Patience(
        tiers.prefetch_base_s, tiers.prefetch_per_ki_s, tiers.prefetch_most_s
    )
    engine.fetcher.prestage.on = tiers.prestage
    whole = engine.config.retention.sparse != "off"  # bounds of pages are made before the step
    engine.fetcher.layers.on = tiers.load == "layerwise" and not whole
    bind_placement(engine)
    bind_retrieval(engine)
    enabled = tiers.any_on and cache.values == "hbm"
    engine.fetcher.enabled = enabled  # DRAM is taken, and K alone is no row
    engine.scheduler.prefix_caching = cache.prefix_caching and cache.mode == "on"
    policy, tail = engine.retainer.policy, engine.retainer.tail_tokens()
    engine.scheduler.tail_tokens = tail
    manager = engine.stack.manager
    manager.keys.reuse_recoded = cache.reuse == "recoded"
    roles = manager.roles
    roles.max_open_pages = max_open_pages(engine.config)
    roles.residual_pages = residual_pages(engine.config)
    roles.outlier_pages = cache.outlier_pages
    roles.sink_pages = sink_pages(engine.config)
    manager.most_values_pages = engine.stack.specs.most_values_pages(engine.config)
    least = NO_HITS if policy.needs_keys else policy.min_observed_tokens
    manager.lookup.explicit = cache.prompt_caching == "explicit"
    manager.lifetimes.min_tokens = cache.min_cacheable_tokens
    engine.stack.pool.lifetimes = manager.lifetimes
    manager.lookup.partial_hits = cache.partial_hits
    manager.lookup.min_new_tokens = max(1, least)
    manager.lookup.prompt_tail = tail or 0
    _index_rows(engine, cache.index)
    _order_rows(engine, cache.eviction)


def _index_rows(engine: "Engine", name: str) -> None:
    """How cached rows are found; what is cached already is taken over with its keys."""
    pool = engine.stack.pool
    if pool.index.name != name:
        index = engine.registry.create("index", name, engine.log.on_stored, engine.log.on_removed)
        index.take_over(pool.index)
        pool.index = index


def _order_rows(engine: "Engine", name: str) -> None:
    """Which cached row goes first; what is cached already enters by age."""
    pool = engine.stack.pool
    if pool.order_name != name:
        order = engine.registry.create("eviction", name, len(pool.ref_cnt))
        pool.order_name, pool.ranked = name, None
        if name != "lru":  # the free lists' own order
            pool.ranked = RankedRows(pool, order, engine.metrics.prefill.work)
