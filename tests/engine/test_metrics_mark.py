"""What the numbers say of the time since the last change holds no sample from before it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.clock import ManualClock
from workbench.engine.metrics import Metrics, Window

SAMPLES = st.lists(st.floats(0.0, 1e4), max_size=60)


@given(before=SAMPLES, after=SAMPLES, gap_s=st.floats(0.001, 2.0))
def test_after_is_the_percentile_of_later_samples_alone(
    before: list[float], after: list[float], gap_s: float
) -> None:
    clock = ManualClock()
    window, only_after = Window(clock), Window(clock)
    for value in before:
        window.add(value)
        clock.advance(gap_s)
    window.mark()
    for value in after:
        clock.advance(gap_s)
        window.add(value)
        only_after.add(value)
    number, expected = window.percentile(50, "ms"), only_after.percentile(50, "ms")
    assert (number.after, number.after_samples) == (expected.value, expected.samples)
    assert number.samples >= number.after_samples


def test_before_any_change_there_is_no_after() -> None:
    window = Window(ManualClock())
    window.add(1.0)
    assert window.percentile(50, "ms").after is None
    assert window.rate("tok/s").after is None


def test_a_rate_counts_from_the_change_on() -> None:
    clock = ManualClock()
    window = Window(clock, 5.0)
    for _ in range(40):
        window.add(10.0)
        clock.advance(0.1)
    window.mark()
    for _ in range(20):
        clock.advance(0.1)
        window.add(1.0)
    assert window.rate("tok/s").after == pytest.approx(10.0)
    for _ in range(60):
        clock.advance(0.1)
        window.add(1.0)
    assert window.rate("tok/s").after == pytest.approx(10.0, rel=0.05)


def test_a_share_counts_from_the_change_on() -> None:
    metrics = Metrics(ManualClock())
    metrics.prompt_tokens, metrics.hit_tokens = 100, 90
    metrics.mark()
    assert metrics.numbers()["hit_rate"].after is None
    metrics.prompt_tokens, metrics.hit_tokens = 150, 100
    hit_rate = metrics.numbers()["hit_rate"]
    assert (hit_rate.after, hit_rate.after_samples) == (20.0, 50)
    assert hit_rate.value == pytest.approx(100 * 100 / 150)
