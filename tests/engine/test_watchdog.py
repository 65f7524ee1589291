"""I8: an engine in which nobody gets anywhere raises; one that only waits does not."""

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.engine import watchdog
from workbench.errors import IntegrityError
from workbench.temporal.scheduling.step import SchedulerOutput


def step_for_ever(runner: Runner, limit: int) -> None:
    for _ in range(limit):
        runner.engine.step()


def test_a_planted_stall_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(build())
    runner.add(tokens(20), 4)
    runner.step()
    monkeypatch.setattr(runner.engine.scheduler, "schedule", SchedulerOutput)
    limit = watchdog.PATIENCE_STEPS + 20
    step_for_ever(runner, limit - 1)
    with pytest.raises(IntegrityError) as error:
        runner.step()
    assert str(error.value) == (
        f"I8: no request moved on in {limit} steps; request 1, the oldest, is running: "
        "restart the engine"
    )


def test_preempting_in_a_circle_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step computes tokens, but always the same ones."""
    monkeypatch.setattr(watchdog, "PATIENCE_STEPS", 20)
    runner = Runner(build({"cache.prefix_caching": False}))
    runner.add(tokens(20), 4)
    runner.step()
    with pytest.raises(IntegrityError, match="I8: no request moved on in 40 steps"):
        for _ in range(100):
            runner.engine.scheduler.preempt_all("planted")
            runner.step()


def test_long_recomputation_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 known tokens again, one a step, are many steps without a new token."""
    monkeypatch.setattr(watchdog, "PATIENCE_STEPS", 1)
    runner = Runner(build({"cache.prefix_caching": False}))
    request_id = runner.add(tokens(100), 4)
    runner.step(8)
    runner.engine.apply({"scheduling.chunk_tokens": 1, "cache.hbm_budget_mib": pages(40)})
    runner.drain()
    assert len(runner.outputs[request_id]) == 4


def test_an_idle_engine_may_be_stepped_for_ever() -> None:
    runner = Runner(build())
    first = runner.one(tokens(20), 2)
    step_for_ever(runner, 2 * watchdog.PATIENCE_STEPS)
    assert runner.engine.watchdog.num_idle_steps == 0, "nobody waits"
    assert runner.one(tokens(20), 2) == first
