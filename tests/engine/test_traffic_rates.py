"""Traffic of the tiers goes by the engine's clock: neither a pause nor slow motion dilutes it."""

import time

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.clock import ManualClock, RealClock
from workbench.engine.views.rates import RATE_WINDOW_S, Rates
from workbench.snapshot import Snapshot, decode_frame

TIERS = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 1.0}


def look(runner: Runner) -> Snapshot:
    return decode_frame(runner.engine.frame(1, state="running"))[0]


def traffic(snapshot: Snapshot) -> list[float]:
    return [rate for tier in snapshot.tiers for rate in (tier.in_bytes_per_s, tier.out_bytes_per_s)]


def test_a_pause_holds_the_rate_and_slow_motion_does_not_dilute_it() -> None:
    clock = RealClock()
    clock.pause()  # as between the steps of slow motion
    runner = Runner(build(TIERS, clock=clock))
    began_s = clock.now_s()
    look(runner)
    for seed in range(3):
        time.sleep(0.05)
        clock.resume()
        runner.one(tokens(80, seed), 4)
        clock.pause()
    shown = look(runner)
    dram = shown.tiers[1]
    assert dram.in_bytes_total > 0
    assert dram.in_bytes_per_s == pytest.approx(dram.in_bytes_total / (clock.now_s() - began_s))
    time.sleep(0.05)
    assert traffic(look(runner)) == traffic(shown), "the machine's time goes on, the engine's not"


def test_bytes_that_land_in_a_pause_count_when_time_goes_on() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    assert rates.per_s("in", 0) == 0.0
    clock.advance(1.0)
    assert rates.per_s("in", 100) == 100.0
    assert rates.per_s("in", 300) == 100.0, "the clock stands"
    clock.advance(1.0)
    assert rates.per_s("in", 300) == 150.0


@pytest.mark.parametrize(("frame_s", "seconds"), [(0.1, RATE_WINDOW_S), (5.0, 5.0)])
def test_the_rate_is_that_of_the_window_or_of_one_longer_step(
    frame_s: float, seconds: float
) -> None:
    clock = ManualClock()
    rates = Rates(clock)
    for number in range(60):
        shown = rates.per_s("out", 7 * number * number)
        clock.advance(frame_s)
    count = round(seconds / frame_s)
    assert shown == pytest.approx(7 * (59**2 - (59 - count) ** 2) / seconds, rel=0.06)
