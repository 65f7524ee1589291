"""A load past its deadline: what has arrived is used, the rest is recomputed."""

import pytest

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.clock import ManualClock
from workbench.request import MissReason, Request, RequestStatus

PROMPT = tokens(60, 0)  # 14 blocks may be hit
PAGE_BYTES = 2048
PAGES_PER_S = 3
SLOW = {
    "cache.hbm_budget_mib": pages(32), "tiers.disk_mib": 1.0, "tiers.write": "through",
    "tiers.disk_throttle_mb_s": PAGES_PER_S * PAGE_BYTES / 1e6,
    "tiers.prefetch": "timeout", "tiers.prefetch_per_ki_s": 0.0,
}  # fmt: skip


def settle(runner: Runner, clock: ManualClock) -> None:
    for _ in range(3):
        runner.engine.hierarchy.wait_io()
        clock.advance(1000.0)
        runner.step()


def below(dram_mib: float, clock: ManualClock, **more: object) -> Runner:
    """An engine whose disk alone has the prompt."""
    runner = Runner(build(SLOW | {"tiers.dram_mib": dram_mib} | more, clock=clock))
    runner.one(PROMPT, 4)
    runner.one(tokens(126, 1), 2)
    settle(runner, clock)
    if dram_mib:
        runner.engine.apply({"tiers.dram_mib": 0.0})
        runner.engine.apply({"tiers.dram_mib": dram_mib})
    return runner


def load_for(runner: Runner, clock: ManualClock) -> tuple[Request, float]:
    """Ask for the prompt; the request once it was admitted, and the seconds that it waited."""
    request = runner.engine.requests[runner.add(PROMPT, 4)]
    start_s = clock.now_s()
    for _ in range(200):
        runner.engine.hierarchy.wait_io()
        runner.step()
        if request.first_scheduled_s:
            return request, clock.now_s() - start_s
        clock.advance(0.05)
    raise AssertionError("it was never admitted")


@pytest.mark.parametrize("dram_mib", [0.0, 0.25])
@pytest.mark.parametrize(("base_s", "num_pages"), [(2.0, 6), (1.0, 3), (0.1, 0), (4.0, 12)])
def test_what_has_arrived_by_the_deadline_is_hit(
    dram_mib: float, base_s: float, num_pages: int
) -> None:
    clock = ManualClock()
    runner = below(dram_mib, clock, **{"tiers.prefetch_base_s": base_s})
    request, waited_s = load_for(runner, clock)
    assert waited_s == pytest.approx(base_s, abs=0.11)
    assert request.num_cached_tokens == 4 * num_pages
    assert request.miss == MissReason(kind="late", token_index=4 * num_pages)
    counters = runner.engine.fetch_counters
    assert counters.num_late_loads == 1 and counters.num_failed_pages == 0
    assert counters.num_loaded_pages == num_pages
    runner.drain()
    assert_naive(model(), PROMPT, runner.outputs[request.request_id])
    settle(runner, clock)
    runner.engine.hierarchy.check_integrity(strict=True)
    stats = runner.engine.hierarchy.stats()
    assert stats.num_jobs == 0 and stats.staging_used_bytes == 0, "nothing stays held"
    runner.engine.close()


@pytest.mark.parametrize(
    ("changes", "waits_s"),
    [
        ({"tiers.prefetch_base_s": 0.5, "tiers.prefetch_per_ki_s": 0.0}, 0.5),
        ({"tiers.prefetch_base_s": 0.0, "tiers.prefetch_per_ki_s": 20.0}, 20.0 * 56 / 1024),
        ({"tiers.prefetch_base_s": 3.0, "tiers.prefetch_most_s": 1.5}, 1.5),
    ],
)
def test_base_share_and_most_are_settings(changes: dict[str, float], waits_s: float) -> None:
    clock = ManualClock()
    runner = below(0.0, clock)
    runner.engine.apply(changes)
    request, waited_s = load_for(runner, clock)
    assert waited_s == pytest.approx(waits_s, abs=0.11)
    assert request.num_cached_tokens == 4 * int(waited_s * PAGES_PER_S)
    runner.engine.close()


def test_dram_that_is_throttled_gives_what_has_passed() -> None:
    clock = ManualClock()
    runner = Runner(build(SLOW | {"tiers.dram_mib": 0.25, "tiers.disk_mib": 0.0}, clock=clock))
    runner.one(PROMPT, 4)
    runner.one(tokens(126, 1), 2)
    runner.engine.apply({"tiers.dram_throttle_mb_s": PAGES_PER_S * PAGE_BYTES / 1e6})
    clock.advance(1000.0)
    runner.step()
    request, _ = load_for(runner, clock)
    assert request.num_cached_tokens == 24
    runner.engine.close()


def test_a_swapped_request_needs_all_its_pages() -> None:
    clock = ManualClock()
    runner = Runner(build(SLOW | {"scheduling.preemption": "swap"}, clock=clock))
    request = runner.engine.requests[runner.add(PROMPT, 20)]
    runner.until(lambda: request.status is RequestStatus.RUNNING)
    runner.step(6)
    runner.engine.scheduler.preempt(request, "test")
    assert runner.engine.fetcher.is_swapped(request)
    runner.engine.hierarchy.wait_io()
    clock.advance(1000.0)
    runner.engine.stack.pool.drop_idle_rows()
    runner.step(2)
    assert request.status is RequestStatus.LOADING
    for pending in runner.engine.fetcher.arrivals._pending.values():
        pending.deadline_s = clock.now_s() + 1.0  # instead of ten times what was predicted
    clock.advance(1.5)
    runner.engine.hierarchy.wait_io()
    runner.step()
    assert runner.engine.fetch_counters.num_late_loads == 1
    assert runner.engine.fetch_counters.num_loaded_pages == 0
    runner.drain()
    assert_naive(model(), PROMPT, runner.outputs[request.request_id])
    assert runner.engine.hierarchy.stats().num_jobs == 0
    runner.engine.close()
