import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.engine.process.pacing import FramePacer, SlowMotion, StateJudge
from workbench.engine.process.protocol import FRAME_INTERVAL_S, detail, parse_detail
from workbench.errors import SettingError
from workbench.events import Event


def preempted(seq: int, time_s: float) -> Event:
    return Event(seq=seq, step=seq, time_s=time_s, kind="preempt")


def test_frames_come_ten_a_second_while_something_changes_and_one_a_second_otherwise():
    pacer = FramePacer()
    sent = 0
    for tick in range(1000):  # ten seconds, steps of 10 ms
        now_s = tick * 0.01
        pacer.touch()
        if pacer.due_in_s(now_s) == 0.0:
            pacer.sent(now_s)
            sent += 1
    assert 100 <= sent <= 10 / FRAME_INTERVAL_S + 1
    assert 0.85 < pacer.due_in_s(10.0) + 0.1 or pacer.due_in_s(10.0) <= FRAME_INTERVAL_S
    pacer.sent(20.0)
    assert pacer.due_in_s(20.5) == pytest.approx(0.5)
    pacer.hurry()
    assert pacer.due_in_s(20.5) == 0.0


def test_steps_longer_than_an_interval_do_not_pile_frames_up():
    pacer = FramePacer()
    for tick in range(50):
        pacer.touch()
        assert pacer.due_in_s(tick * 0.5) == 0.0
        pacer.sent(tick * 0.5)
        assert pacer.due_in_s(tick * 0.5 + 0.01) > 0.05


def test_slow_motion_spaces_steps_by_their_own_duration():
    motion = SlowMotion()
    motion.stepped(1.0, 1.5)
    assert motion.due_in_s(1.5) == 0.0
    motion.set_speed(0.1)
    motion.stepped(2.0, 2.5)
    assert motion.due_in_s(2.5) == pytest.approx(4.5)
    motion.set_speed(1.0)
    assert motion.due_in_s(2.5) == 0.0


@pytest.mark.parametrize("speed", [0.0, -1.0, 1.5, float("nan")])
def test_a_speed_out_of_range_is_refused(speed):
    with pytest.raises(SettingError, match=r"speed = .* is out of range: 0.001 to 1"):
        SlowMotion().set_speed(speed)


def test_three_preemptions_within_two_seconds_are_thrashing():
    judge = StateJudge()

    def state(now_s: float, **given) -> tuple[str, str]:
        known = dict(paused=False, has_work=True, num_waiting=0, has_room=True)
        return judge.state(now_s, **{**known, **given})

    judge.saw([preempted(1, 1.0), preempted(2, 1.1)])
    assert state(1.2) == ("running", "")
    judge.saw([preempted(3, 1.9)])
    assert judge.event_seq == 3
    assert state(2.0) == ("thrashing", "thrashing num_preemptions=3 seconds=2")
    assert state(2.0, paused=True) == ("paused", "")
    assert state(3.05) == ("running", "")
    assert state(3.05, num_waiting=4, has_room=False) == ("saturated", "saturated num_waiting=4")
    assert state(3.05, num_waiting=4) == ("running", "")
    assert state(9.0, has_work=False) == ("idle", "")


@given(st.dictionaries(st.sampled_from(["num_bytes", "seconds", "x"]), st.integers(0, 10**9)))
def test_details_are_read_back(numbers):
    assert parse_detail(detail("fetch", **numbers)) == ("fetch", numbers)


def test_a_reason_of_death_is_its_own_kind():
    assert parse_detail("the engine ended = badly") == ("the engine ended = badly", {})
