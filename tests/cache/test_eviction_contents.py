"""Orders of eviction follow contents: a block that is used again for another text is another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, pages, tokens
from workbench.lab.reuse_bench import dense, replay, synthetic
from workbench.lab.trace_replay import touched_in_order
from workbench.settings.cache import EVICTION_ORDERS
from workbench.structural.retention.eviction import Arc


@settings(deadline=None, max_examples=40, derandomize=True, database=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=150), st.integers(1, 7),
       st.integers(1, 3))  # fmt: skip
def test_the_pool_evicts_what_the_trace_simulator_does(
    references: list[int], capacity: int, num_groups: int
) -> None:
    """Whatever blocks the contents come to lie in, and however many pages each has."""
    trace = dense(references)
    for name in EVICTION_ORDERS:
        simulated, live = list[int](), list[int]()
        rate = replay(trace, capacity, name, simulated.append)
        found = touched_in_order([trace.tolist()], capacity, name, num_groups=num_groups,
                                 gone=live.append)  # fmt: skip
        assert live == simulated, name
        assert found == rate, name


def order_of(runner: Runner) -> Arc:
    ranked = runner.engine.stack.pool.ranked
    assert ranked is not None and isinstance(ranked._order, Arc)
    return ranked._order


@pytest.mark.parametrize("grouping", ["model", "layer"])
def test_arc_finds_no_ghost_of_prompts_that_never_repeat(grouping: str) -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(34), "cache.eviction": "arc",
                           "cache.grouping": grouping}))  # fmt: skip
    for seed in range(40):
        runner.one(tokens(40, seed), 2)
    assert runner.engine.stack.pool.num_evicted_rows > 200
    assert runner.engine.metrics.hit_tokens == 0
    arc = order_of(runner)
    assert arc.num_ghost_hits == 0 and arc._target == 0.0 and not arc._frequent


def test_arc_finds_the_ghost_of_a_prompt_that_comes_back() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(34), "cache.eviction": "arc"}))
    for seed in (0, 1, 2, 3, 0):
        runner.one(tokens(40, seed), 2)
    assert order_of(runner).num_ghost_hits > 0


@settings(deadline=None, max_examples=60, derandomize=True, database=None)
@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 8))
def test_the_directory_of_arc_is_bounded(references: list[int], capacity: int) -> None:
    """T1 and B1 have at most c entries, all four lists at most 2 c; no content is in two."""
    arc = Arc(capacity)
    slots: dict[int, int] = {}
    for content in references:
        if content in slots:
            arc.hit(slots[content])
            continue
        slot = len(slots)
        if slot == capacity:
            slot = arc.choose(np.ones(capacity, bool))
            arc.removed(slot)
            del slots[arc.content[slot]]  # type: ignore[arg-type]
        slots[content] = slot
        arc.inserted(slot, content, 1.0)
        b1, b2 = arc._ghosts
        assert len(arc._recent) + len(b1) <= capacity
        assert len(slots) + len(b1) + len(b2) <= 2 * capacity
        assert not {*b1} & {*b2} and not ({*b1} | {*b2}) & {*slots}


def test_cost_aware_weighs_the_time_to_compute_again_by_a_rows_own_bytes() -> None:
    """The first page is exact, so it has more bytes; a later one has more tokens before it."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(64), "cache.eviction": "cost-aware",
                           "cache.k_format": "int8", "cache.v_format": "int8",
                           "cache.sink_tokens": 4}))  # fmt: skip
    runner.one(tokens(40), 2)
    pool, metrics = runner.engine.stack.pool, runner.engine.metrics
    rows = sorted(pool.index.rows(), key=lambda row: row.page)
    sizes = [sum(pool.classes[pool.page_class(block)].page_bytes for block in row.blocks)
             for row in rows]  # fmt: skip
    assert sizes[0] > 2 * sizes[1] == 2 * sizes[-1]
    costs = [pool.ranked.cost(row) for row in rows]
    assert costs[0] < costs[1] / 2 and costs == sorted(costs)
    for prefix in (0, 100, 400, 900):  # a token takes 1 ms, and 4 us for each one before it
        for _ in range(20):
            metrics.prefill.observe(64, 64 * (1e-3 + 4e-6 * prefix), prefix)
    each = [4 * (1e-3 + 4e-6 * (4 * row.page + 1.5)) / size
            for row, size in zip(rows, sizes, strict=True)]  # fmt: skip
    told = [pool.ranked.cost(row) for row in rows]
    assert [cost / told[0] for cost in told] == pytest.approx([cost / each[0] for cost in each],
                                                              rel=1e-2)  # fmt: skip


@pytest.mark.parametrize("index", ["hash", "radix"])
def test_what_a_leaf_is_follows_the_index(index: str) -> None:
    """Also where a row comes back in front of one that continues it, and after a recode."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(34), "cache.eviction": "fifo",
                           "cache.index": index}))  # fmt: skip
    shared = tokens(16)
    for seed in range(12):
        runner.one(shared + tokens(4 * (seed % 5), seed), 2)
        if seed == 6:
            head = next(row for row in runner.engine.stack.pool.index.rows() if not row.page)
            runner.engine.stack.pool.forget(head)
        if seed == 9:
            runner.engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
        pool = runner.engine.stack.pool
        for row in pool.index.rows():
            leaf = not pool.index.num_children(row)
            assert pool.ranked._is_leaf[row.blocks[0]] == leaf, (seed, row.page)


def textbook_arc(references: list[int], size: int) -> float:
    """Hit rate of ARC as its article's figure 4 says it, which knows a miss before it evicts."""
    t1, t2, b1, b2 = (dict[int, None]() for _ in range(4))
    target, hits = 0.0, 0

    def replace(content: int) -> None:
        first = t1 and (len(t1) > target or (content in b2 and len(t1) == target))
        cached, ghosts = (t1, b1) if first else (t2, b2)
        oldest = next(iter(cached))
        del cached[oldest]
        ghosts[oldest] = None

    for content in references:
        if content in t1 or content in t2:
            hits += 1
            t1.pop(content, None)
            t2.pop(content, None)
        elif content in b1 or content in b2:
            mine, other, sign = (b1, b2, 1) if content in b1 else (b2, b1, -1)
            step = sign * max(1.0, len(other) / len(mine))
            target = min(size, max(0.0, target + step))
            replace(content)
            del mine[content]
        else:
            if len(t1) + len(b1) == size and len(t1) == size:
                del t1[next(iter(t1))]
            elif len(t1) + len(t2) + len(b1) + len(b2) >= size:
                if len(t1) + len(b1) == size:
                    del b1[next(iter(b1))]
                elif len(t1) + len(t2) + len(b1) + len(b2) == 2 * size:
                    del b2[next(iter(b2))]
                replace(content)
            t1[content] = None
            continue
        t2[content] = None
    return hits / len(references)


@pytest.mark.parametrize("capacity", [100, 400, 1000])
def test_arc_is_the_articles(capacity: int) -> None:
    """A pool evicts before it knows what comes, which moves a hit rate by little."""
    references = synthetic(20_000)
    ours, wanted = replay(dense(references), capacity, "arc"), textbook_arc(references, capacity)
    assert ours == pytest.approx(wanted, abs=0.002)
