"""What the cache saves, worked out by hand: no cache, contiguous rooms, swapped pages."""

import numpy as np
import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache.keys import PrivateKey
from workbench.request import RequestStatus

TIGHT = {"tiers.dram_mib": 0.5, "scheduling.preemption": "swap", "cache.hbm_budget_mib": pages(64)}


@pytest.mark.parametrize(("mode", "computed", "again"), [("off", 10 + 11 + 12, 10 + 11),
                                                         ("on", 12, 0)])  # fmt: skip
def test_without_a_cache_each_token_recomputes_all_before_it(
    mode: str, computed: int, again: int
) -> None:
    runner = Runner(build({"cache.mode": mode}))
    runner.one(tokens(10), 3)
    metrics = runner.engine.metrics
    assert (metrics.computed_tokens, metrics.recomputed_tokens) == (computed, again)
    numbers = metrics.numbers()
    assert numbers["recomputed_tokens"].value == again
    assert numbers["recompute_tax"].value == pytest.approx(100 * again / computed)


def test_internal_waste_of_pages_is_less_than_a_page_and_of_rooms_the_rest_of_them() -> None:
    """25 tokens: 7 pages of 4 hold 28; a room for 25 + 15 holds 40."""
    for allocation, slots in (("paged", 28), ("contiguous", 40)):
        runner = Runner(build({"cache.allocation": allocation}))
        runner.add(tokens(25), 15)
        runner.step(2)  # chunks of 16 and 9
        waste = runner.engine.snapshot().numbers["internal_waste"]
        assert waste.value == pytest.approx(100 * (slots - 25) / slots), allocation


def test_external_waste_is_what_is_free_but_not_in_one_piece() -> None:
    """Rooms of 10 pages at 0, 10 and 20 of 32; the middle one ends: 12 are free, 10 in a row."""
    runner = Runner(build({"cache.allocation": "contiguous", "cache.hbm_budget_mib": pages(32)}))
    ids = [runner.add(tokens(8, seed), 32) for seed in range(3)]
    runner.step(2)
    numbers = runner.engine.snapshot().numbers
    assert numbers["external_waste"].value == 0.0
    runner.engine.abort(ids[1])
    runner.step()
    assert runner.engine.snapshot().numbers["external_waste"].value == pytest.approx(100 * 2 / 12)
    waiting = runner.add(tokens(8, 9), 40)  # 12 pages are free, and it does not fit
    runner.step()
    assert runner.engine.requests[waiting].status is RequestStatus.WAITING
    paged = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    paged.add(tokens(8), 32)
    paged.step()
    assert paged.engine.snapshot().numbers["external_waste"].value == 0.0


def test_swap_moves_only_pages_with_one_reference() -> None:
    runner = Runner(build(TIGHT))
    engine, shared = runner.engine, tokens(40)
    runner.one(shared, 1)
    texts = [shared + tokens(8, seed) for seed in (1, 2)]
    ids = [runner.add(text, 20) for text in texts]
    runner.step(4)
    tables = engine.stack.manager.requests
    both = set(tables[ids[0]].blocks(0).tolist()) & set(tables[ids[1]].blocks(0).tolist())
    assert len(both) == 10
    victim = engine.requests[ids[1]]
    own = int(tables[ids[1]].num_used_pages()[0]) - 10
    before = np.array([engine.stack.pool.ref_cnt[block] for block in both])
    engine.scheduler.preempt(victim, "test")
    private = [key for key, *_ in engine.hierarchy.entries("G2") if isinstance(key, PrivateKey)]
    assert engine.fetch_counters.num_swapped_pages == own == len(private) > 0
    assert {key.index for key in private} == set(range(10, 10 + own))
    assert not engine.fetch_counters.num_demoted_pages
    after = np.array([engine.stack.pool.ref_cnt[block] for block in both])
    assert (before == 2).all() and (after == 1).all()
    runner.drain()
    undisturbed = Runner(build({"cache.hbm_budget_mib": pages(64)}))
    for request_id, text in zip(ids, texts, strict=True):
        assert runner.outputs[request_id] == undisturbed.one(text, 20)
