"""Leases, hard and soft pins: what eviction spares, what it takes last, and how both end."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spatial.conftest import Harness
from workbench.cache.keys import PrivateKey
from workbench.clock import ManualClock
from workbench.spatial.hierarchy.pins import Hold, Pins


def fill(t: Harness, *numbers: int) -> None:
    for number in numbers:
        assert t.store(t.key(number))
        t.settle()


def held(t: Harness, tier: str = "G2") -> set[int]:
    return {int.from_bytes(row[0], "little") for row in t.h.entries(tier)}


def holds(t: Harness, tier: str = "G2") -> dict[int, Hold]:
    return {int.from_bytes(row[0], "little"): row[2] for row in t.h.entries(tier)}


def test_a_soft_pin_goes_after_all_that_nothing_holds(harness):
    t = harness(3, 0, ManualClock())
    fill(t, 0, 1, 2)
    assert t.h.holds.pin(t.key(0), soft=True)
    fill(t, 3, 4)
    assert held(t) == {0, 3, 4}  # 1 and 2 went, though 0 was used before them
    for number in (3, 4):
        t.h.holds.pin(t.key(number), soft=True)
    fill(t, 5)
    assert held(t) == {3, 4, 5}  # all were soft: the least recently used of them had to go
    assert holds(t) == {3: Hold.SOFT, 4: Hold.SOFT, 5: Hold.NONE}


def test_a_hard_pin_is_spared_where_a_soft_one_is_not(harness):
    t = harness(2, 0, ManualClock())
    fill(t, 0, 1)
    t.h.holds.pin(t.key(0))
    t.h.holds.pin(t.key(1), soft=True)
    fill(t, 2)
    assert held(t) == {0, 2} and holds(t)[0] is Hold.HARD
    t.h.holds.pin(t.key(2))
    assert not t.store(t.key(3))  # everything is held, and no tier lies below
    t.h.check_integrity(strict=True)


def test_a_soft_pin_ends_with_its_time_and_lists_tell(harness):
    t = harness(2, 0, ManualClock())
    fill(t, 0, 1)
    t.h.holds.pin(t.key(0), 10.0, soft=True)
    assert t.h.holds.left_s(t.key(0)) == 10.0 and holds(t)[0] is Hold.SOFT
    t.clock.advance(10.0)
    assert t.h.holds.left_s(t.key(0)) is None
    t.h.poll()
    assert holds(t)[0] is Hold.NONE
    fill(t, 2)
    assert held(t) == {1, 2}


def test_a_pin_goes_with_the_page_from_tier_to_tier(harness):
    t = harness(1, 2, ManualClock())
    fill(t, 0, 1, 2)
    t.h.holds.pin(t.key(0))
    assert holds(t, "G3") == {0: Hold.HARD, 1: Hold.NONE}
    fill(t, 3, 4, 5)
    assert held(t, "G3") == {0, 4}
    assert t.load([t.key(0)]) == ["G3"]
    t.settle()  # what it pushed out of DRAM is written
    fill(t, 6)
    assert holds(t)[0] is Hold.HARD  # and no longer on disk alone
    t.h.holds.unpin(t.key(0))
    fill(t, 7)
    assert held(t) == {7}


def test_a_soft_page_that_went_down_goes_last_there_too(harness):
    t = harness(1, 2, ManualClock())
    fill(t, 0)
    t.h.keep([t.key(0)], math.inf)
    fill(t, 1)
    assert held(t, "G3") == {0}
    fill(t, 2, 3)
    assert held(t, "G3") == {0, 2}  # 1 was there before 2 and went
    assert holds(t, "G3")[0] is Hold.SOFT


def test_what_is_not_there_cannot_be_pinned_but_kept_for_later(harness):
    t = harness(2, 0, ManualClock())
    assert not t.h.holds.pin(t.key(0))
    t.h.keep([t.key(0)], 60.0)
    fill(t, 0, 1, 2)
    assert held(t) == {0, 2}
    t.h.clear()
    assert t.h.holds.left_s(t.key(0)) is None


def test_private_pages_are_pinned_too(harness):
    t = harness(2, 0, ManualClock())
    key = PrivateKey("request", 0, 0, 0)
    t.store(key)
    assert t.h.holds.pin(key)
    fill(t, 1, 2, 3)
    assert any(row[0] == key for row in t.h.entries("G2"))
    t.h.drop_private("request")
    assert not t.h.holds.pin(key)


numbers = st.integers(0, 7)
ends = st.sampled_from([0.5, 3.0, math.inf])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("store"), numbers, st.just(0.0)),
            st.tuples(st.sampled_from(["hard", "soft"]), numbers, ends),
            st.tuples(st.just("unpin"), numbers, st.just(0.0)),
            st.tuples(st.just("wait"), st.just(0), st.sampled_from([0.3, 1.0, 5.0])),
        ),
        max_size=40,
    )
)
def test_eviction_takes_the_unheld_then_the_soft_and_never_the_hard(
    acts: list[tuple[str, int, float]],
) -> None:
    t = Harness(3, 0, ManualClock())
    try:
        for what, number, seconds in acts:
            key, before = t.key(number), holds(t)
            if what == "store":
                t.store(key)
                gone = before.keys() - held(t)
                assert all(before[each] < Hold.HARD for each in gone)
                if any(before[each] is Hold.SOFT for each in gone):
                    kept = before.keys() - gone
                    assert not any(before[each] is Hold.NONE for each in kept)
            elif what == "wait":
                t.clock.advance(seconds)  # type: ignore[attr-defined]
                t.h.poll()
            elif what == "unpin":
                t.h.holds.unpin(key)
            else:
                assert t.h.holds.pin(key, seconds, soft=what == "soft") == (number in before)
            t.h.check_integrity(strict=True)
    finally:
        t.h.close()


def test_pins_by_themselves() -> None:
    clock = ManualClock()
    pins, key = Pins(clock.now_s), bytes(32)
    assert pins.hold(key) is Hold.NONE and pins.left_s(key) is None and not pins.expire()
    pins.pin(key, 5.0)
    pins.pin(key, 9.0, soft=True)
    assert pins.hold(key) is Hold.HARD and pins.left_s(key) == 5.0
    clock.advance(5.0)
    assert pins.hold(key) is Hold.SOFT and pins.left_s(key) == pytest.approx(4.0)
    assert pins.expire() and not pins.expire()
    pins.clear()
    assert pins.hold(key) is Hold.NONE
