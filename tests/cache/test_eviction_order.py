"""Orders of eviction in the pool: what goes, that hits stay right, that chains go tail first."""

import pytest

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.engine.builtin import builtin_registry
from workbench.settings.cache import EVICTION_ORDERS


def test_every_setting_has_an_implementation() -> None:
    assert tuple(builtin_registry().names("eviction")) == EVICTION_ORDERS


@pytest.mark.parametrize("name", EVICTION_ORDERS)
def test_tokens_do_not_depend_on_the_order(name: str) -> None:
    """More prompts than fit come back in turn; every token is the naive loop's."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(34), "cache.eviction": name}))
    prompts = [tokens(30, seed) for seed in range(6)]
    for prompt in [*prompts, *prompts[::-1], prompts[0]]:
        assert_naive(model(), prompt, runner.one(prompt, 4))
    assert runner.engine.stack.pool.num_evicted_rows > 0
    assert runner.engine.stack.pool.order_name == name


@pytest.mark.parametrize("name", EVICTION_ORDERS)
def test_a_chain_is_evicted_from_its_end(name: str) -> None:
    """Whatever is left of a prompt can still be hit: no row loses those in front of it."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(34), "cache.eviction": name}))
    for seed in range(8):
        runner.one(tokens(40, seed), 2)
        index = runner.engine.stack.pool.index
        for row in index.rows():
            assert row.parent_key is None or index.get(row.parent_key) is not None
    assert len(index.rows()) > 0 and runner.engine.stack.pool.num_evicted_rows > 0


@pytest.mark.parametrize("name", EVICTION_ORDERS)
def test_the_order_shown_is_the_order_taken(name: str) -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(34), "cache.eviction": name}))
    for seed in range(3):
        runner.one(tokens(24, seed), 2)
    pool, cls = runner.engine.stack.pool, runner.engine.stack.manager.classes[0]
    order = pool.eviction_order(cls)
    assert sorted(order) == sorted(
        block for block in range(len(pool.row_of)) if pool.cached[block] and not pool.ref_cnt[block]
    )
    if name == "lru":
        return
    leaf = next(block for block in order if not pool.index.num_children(pool.row_of[block]))
    assert pool.ranked.victim(cls) == leaf


def test_the_order_changes_live_and_survives_a_recode() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(64)}))
    runner.one(tokens(30), 4)
    runner.engine.apply({"cache.eviction": "lfu"})
    for _ in range(3):
        runner.one(tokens(30), 2)
    runner.engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
    assert runner.engine.stack.pool.order_name == "lfu"
    assert runner.engine.stack.pool.ranked is not None
    for seed in range(1, 9):
        runner.one(tokens(30, seed), 2)
    runner.engine.apply({"cache.eviction": "lru"})
    assert runner.engine.stack.pool.ranked is None
    runner.one(tokens(30), 2)
