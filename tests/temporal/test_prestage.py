"""What waits comes up meanwhile: also as a lossy codec left it, and also what is written yet."""

from typing import Any

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache.tier import HOLD_S
from workbench.clock import ManualClock
from workbench.request import Request, RequestStatus

PROMPT = tokens(60, 0)  # 14 blocks may be hit
WAITS = {"cache.hbm_budget_mib": pages(32), "scheduling.max_num_seqs": 1, "tiers.prestage": True}


def stats(runner: Runner, name: str) -> Any:
    return next(tier for tier in runner.engine.hierarchy.stats().tiers if tier.name == name)


def filled(changes: dict[str, Any], **options: Any) -> Runner:
    """An engine whose slow tiers have the prompt, and neither HBM nor DRAM does."""
    runner = Runner(build(WAITS | {"tiers.write": "through"} | changes, **options))
    runner.one(PROMPT, 4)
    runner.one(tokens(126, 1), 2)
    runner.engine.hierarchy.wait_io()
    if dram := changes.get("tiers.dram_mib"):
        runner.engine.apply({"tiers.dram_mib": 0.0})
        runner.engine.apply({"tiers.dram_mib": dram})
    return runner


def behind_a_long_one(runner: Runner) -> Request:
    """The prompt again, waiting behind a request that has the only place."""
    long = runner.engine.requests[runner.add(tokens(8, 9), 60)]
    runner.until(lambda: long.status is RequestStatus.RUNNING)  # a shared tier was asked first
    return runner.engine.requests[runner.add(PROMPT, 4)]


def wait(runner: Runner, request: Request, steps: int = 6) -> None:
    for _ in range(steps):
        runner.step()
        runner.engine.hierarchy.wait_io()
        assert request.status is RequestStatus.WAITING


@pytest.mark.parametrize("codec", ["none", "planes+zstd", "cachegen"])
def test_pages_come_up_whatever_codec_packed_them(codec: str) -> None:
    runner = filled({"tiers.dram_mib": 0.25, "tiers.disk_mib": 2.0, "tiers.disk_codec": codec})
    request = behind_a_long_one(runner)
    before = stats(runner, "G3").num_loads
    wait(runner, request)
    assert stats(runner, "G3").num_loads - before == 14
    runner.until(lambda: request.num_cached_tokens)
    assert request.num_cached_tokens == 56
    assert stats(runner, "G3").num_loads - before == 14, "its turn finds them in DRAM"
    runner.drain()
    runner.engine.close()


def test_a_page_that_is_being_written_comes_up_later() -> None:
    """Its write takes its time; the request has been looked at before, and is looked at again."""
    clock = ManualClock()
    runner = Runner(build(WAITS | {"tiers.dram_mib": 0.0, "tiers.disk_mib": 2.0}, clock=clock))
    runner.one(PROMPT, 4)
    runner.engine.hierarchy.wait_io()
    clock.advance(1000.0)
    runner.engine.apply({"tiers.disk_throttle_mb_s": 0.001})
    runner.one(tokens(100, 1), 20)  # pushes the prompt out of HBM, down to a slow disk
    request = behind_a_long_one(runner)
    keys = runner.engine.stack.manager.keys
    below = keys.row_keys(request, keys.lineages[0])[:14]
    hierarchy = runner.engine.hierarchy
    assert any(hierarchy.before_turn.is_coming(key) for key in below)
    runner.engine.apply({"tiers.dram_mib": 0.25})
    wait(runner, request, 3)
    came = stats(runner, "G3").num_loads
    for _ in range(60):
        clock.advance(1000.0)
        wait(runner, request, 1) if request.status is RequestStatus.WAITING else runner.step()
        if hierarchy.lookups.num_at_hand(below) == 14:
            break
    assert request.status is RequestStatus.WAITING, "it all happened while it waited"
    assert stats(runner, "G3").num_loads > came and not hierarchy.before_turn.is_coming(below[0])
    runner.drain()
    runner.engine.close()


@pytest.mark.parametrize("dram_mib", [0.0, 0.25])
def test_a_store_holds_what_a_waiting_request_will_read(dram_mib: float) -> None:
    runner = filled({"tiers.dram_mib": dram_mib, "tiers.shared": "store", "tiers.shared_mib": 1.0})
    pool = runner.engine.hierarchy.mover.ladder.tiers[1].medium
    assert pool is not None and pool.usage().num_held == 0
    request = behind_a_long_one(runner)
    shown = runner.engine.hierarchy.shared_usage  # of the page Tiers: its last answer
    most = 0
    for _ in range(30):  # a hold lasts seconds, and a busy machine may take as long for a step
        wait(runner, request, 1)
        most = max(most, shown().num_held if shown() is not None else 0)
        if most == 14:
            break
    assert most == 14, "until it has come up, or the request's turn"
    assert stats(runner, "G3.5").num_loads == (14 if dram_mib else 0)
    runner.until(lambda: request.num_cached_tokens)
    assert request.num_cached_tokens == 56
    runner.drain()
    runner.engine.close()


def test_a_hold_is_renewed_while_the_request_waits() -> None:
    clock = ManualClock()
    settings = {"tiers.shared": "store", "tiers.shared_mib": 1.0, "scheduling.order": "fcfs"}
    runner = filled(settings, clock=clock)
    tier = runner.engine.hierarchy.mover.ladder.tiers[1]
    held: list[int] = []
    whole, medium = tier.medium.prestage, tier.medium
    medium.prestage = lambda keys, hold_s: (held.append(len(keys)), whole(keys, hold_s))[1]
    request = behind_a_long_one(runner)
    wait(runner, request, 4)
    assert held == [14]
    clock.advance(HOLD_S / 2)
    wait(runner, request, 2)
    assert held == [14, 14]
    runner.engine.apply({"tiers.prestage": False})
    clock.advance(HOLD_S)
    wait(runner, request, 2)
    assert held == [14, 14]
    runner.drain()
    runner.engine.close()
