"""The scheduler's own promises: budgets, orders, watermark, turns, progress."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, pages, tokens
from workbench.engine.engine import Engine
from workbench.request import RequestStatus
from workbench.temporal.scheduling.step import SchedulerOutput

FAST = settings(max_examples=12, deadline=None, derandomize=True, database=None,
                suppress_health_check=list(HealthCheck))  # fmt: skip


def watched(engine: Engine) -> list[SchedulerOutput]:
    """Every batch the scheduler chose."""
    seen: list[SchedulerOutput] = []
    schedule = engine.scheduler.schedule

    def record() -> SchedulerOutput:
        seen.append(schedule())
        return seen[-1]

    engine.scheduler.schedule = record  # type: ignore[method-assign]
    return seen


@FAST
@given(budget=st.integers(1, 40), chunk=st.integers(1, 40), seqs=st.integers(1, 6),
       size=st.integers(32, 64), seed=st.integers(0, 1000))  # fmt: skip
def test_a_step_never_exceeds_its_budgets(
    budget: int, chunk: int, seqs: int, size: int, seed: int
) -> None:
    """I6: tokens within the budget, chunks within theirs, no request twice."""
    runner = Runner(build({
        "scheduling.token_budget": budget, "scheduling.chunk_tokens": chunk,
        "scheduling.max_num_seqs": seqs, "cache.hbm_budget_mib": pages(size),
        "scheduling.admit_whole_prompt": False,
    }))  # fmt: skip
    batches = watched(runner.engine)
    for at in range(6):
        runner.add(tokens(10 + 7 * at, seed + at), 6)
    runner.drain()
    assert sum(out.num_tokens for out in batches) >= sum(10 + 7 * at for at in range(6))
    for out in batches:
        assert out.num_tokens <= budget
        assert len(out.scheduled) <= seqs
        assert all(1 <= count <= max(1, chunk) for _, count in out.scheduled.values())
        names = [request.request_id for request, _ in out.scheduled.values()]
        assert names == list(out.scheduled) and len(set(names)) == len(names)
        assert not set(names) & {request.request_id for request in out.preempted}


def test_fcfs_starts_in_order_of_arrival() -> None:
    assert _order_of_ends("fcfs", [0, 0, 0, 0]) == ["1", "2", "3", "4"]


def test_priority_starts_the_smallest_first() -> None:
    assert _order_of_ends("priority", [3, 1, 2, 1]) == ["2", "4", "3", "1"]


def _order_of_ends(order: str, priorities: list[int]) -> list[str]:
    runner = Runner(build({"scheduling.order": order, "scheduling.max_num_seqs": 1}))
    for at, priority in enumerate(priorities):
        runner.add(tokens(10, at), 3, priority=priority)
    runner.drain()
    return list(runner.engine.finished)


def test_longest_prefix_first_starts_with_what_is_cached() -> None:
    runner = Runner(build({"scheduling.order": "longest-prefix-first",
                           "scheduling.max_num_seqs": 1}))  # fmt: skip
    warm = tokens(40, 1)
    runner.one(warm, 1)
    runner.add(tokens(30, 2), 2)
    runner.add(warm[:20] + [1, 2], 2)
    runner.add(warm + [1, 2], 2)
    runner.drain()
    assert list(runner.engine.finished) == ["1", "4", "3", "2"]


def test_priority_decides_who_is_preempted() -> None:
    runner = Runner(build({"scheduling.order": "priority", "cache.hbm_budget_mib": pages(36),
                           "scheduling.admit_whole_prompt": False}))  # fmt: skip
    late = runner.add(tokens(40, 1), 60, priority=5)
    first = runner.add(tokens(40, 2), 60, priority=0)
    runner.drain()
    assert runner.engine.finished[first].num_preemptions == 0
    assert runner.engine.finished[late].num_preemptions > 0


def test_watermark_keeps_blocks_free_when_admitting() -> None:
    running: dict[float, int] = {}
    for watermark in (0.0, 0.4):
        runner = Runner(build({"cache.hbm_budget_mib": pages(40), "cache.prefix_caching": False,
                               "scheduling.watermark": watermark}))  # fmt: skip
        for seed in range(4):
            runner.add(tokens(36, seed), 4)
        runner.step(3)
        running[watermark] = len(runner.engine.scheduler.running)
        runner.drain()
    assert running[0.4] < running[0.0]


def test_the_head_is_not_overtaken() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(40)}))
    runner.add(tokens(60), 30)
    runner.step(6)
    head, small = runner.add(tokens(120, 1), 2), runner.add(tokens(4, 2), 2)
    runner.step(3)
    assert runner.engine.requests[small].status is RequestStatus.WAITING
    runner.drain()
    finished = runner.engine.finished
    assert finished[head].first_scheduled_s <= finished[small].first_scheduled_s


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_progress_at_every_step(preemption: str) -> None:
    """I8: as long as there is work, a counter moves every few steps."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 0.1,
                           "scheduling.preemption": preemption,
                           "scheduling.admit_whole_prompt": False}))  # fmt: skip
    for seed in range(8):
        runner.add(tokens(30 + seed, seed), 20)
    still = 0
    while runner.engine.has_work():
        before = runner.engine.metrics.computed_tokens
        runner.step()
        still = 0 if runner.engine.metrics.computed_tokens > before else still + 1
        assert still < 10


def test_a_lone_request_takes_slabs_of_the_other_class_back() -> None:
    """Two page classes: cached rows must not fill the slabs of the class that is short."""
    runner = Runner(build({"cache.grouping": "halves", "cache.hbm_budget_mib": pages(40, 3)}, 3))
    capacity = runner.engine.stack.manager.capacity_pages
    for seed in range(6):
        runner.one(tokens(20 + 9 * seed, seed), 2)
    longest = runner.add(tokens(capacity * 4 - 2, 99), 2)
    runner.drain()
    assert runner.status[longest] == RequestStatus.FINISHED_LENGTH


def test_two_engines_side_by_side() -> None:
    """No shared state: different block sizes and formats in one process, stepped in turns."""
    runners = [Runner(build({"cache.block_size": size})) for size in (4, 16)]
    ids = [runner.add(tokens(30), 20) for runner in runners]
    for _ in range(30):
        for runner in runners:
            runner.step()
    outputs = [runner.outputs[name] for runner, name in zip(runners, ids, strict=True)]
    assert outputs[0] == outputs[1] and len(outputs[0]) == 20
