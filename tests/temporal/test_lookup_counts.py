"""A tier's hit rate counts lookups, one a request and key, however often the scheduler asks."""

import pytest

from tests.engine.harness import Runner, build, pages, tokens

DRAM = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 1.0}


def counts(runner: Runner, name: str = "G2") -> tuple[int, int]:
    (tier,) = (tier for tier in runner.engine.hierarchy.stats().tiers if tier.name == name)
    return tier.num_hits, tier.num_misses


def test_a_hit_counts_each_page_once() -> None:
    runner = Runner(build(DRAM))
    runner.one(tokens(60, 1), 4)
    runner.one(tokens(120, 2), 4)  # pushes the first prompt out of HBM
    before, loaded = counts(runner), runner.engine.fetch_counters.num_loaded_pages
    runner.one(tokens(60, 1), 4)
    num_pages = runner.engine.fetch_counters.num_loaded_pages - loaded
    hits, misses = counts(runner)
    assert 0 < num_pages <= 14  # of 15, the last is computed
    assert (hits - before[0], misses - before[1]) == (num_pages, 0)
    runner.engine.close()


@pytest.mark.parametrize("prefetch", ["wait", "best_effort"])
def test_a_waiting_head_counts_its_lookup_once(prefetch: str) -> None:
    runner = Runner(build(DRAM | {"tiers.prefetch": prefetch}))
    runner.add(tokens(100, 1), 20)
    runner.step(10)
    waiting = runner.add(tokens(100, 2), 4)
    before = counts(runner)
    runner.step()
    asked = counts(runner)
    assert (asked[0] - before[0], asked[1] - before[1]) == (0, 1), "its first page, a miss"
    runner.step(8)
    assert runner.engine.requests[waiting].num_computed_tokens == 0 and counts(runner) == asked
    runner.drain()
    assert counts(runner) == asked
    runner.engine.close()


def test_swapped_pages_count_once_each() -> None:
    runner = Runner(build(DRAM | {"scheduling.preemption": "swap", "cache.prefix_caching": False}))
    for seed in (1, 2):
        runner.add(tokens(50, seed), 30)
    runner.drain()
    swapped = runner.engine.fetch_counters.num_swapped_pages
    assert swapped > 0 and counts(runner) == (swapped, 0)
    runner.engine.close()
