"""Loads before stores, and what happens when more is on its way to a tier than it may take."""

import threading

import pytest

from workbench.clock import ManualClock, RealClock
from workbench.spatial.hierarchy.io_thread import GET, PROBE, PUT, REMOVE, IoThread, Op, Outcome


class Recorder:
    """A thread whose first operation waits until it is let go, and the order of all others."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.go, self.begun = threading.Event(), threading.Event()
        self.thread = IoThread("recorder", self._perform)
        self._queue(PUT, "first")
        self.begun.wait(10)

    def _perform(self, ops: list[Op]) -> list[Outcome]:
        self.begun.set()
        self.go.wait(10)
        self.order += [f"{op.kind} {op.key.decode()}" for op in ops]
        return [Outcome()] * len(ops)

    def _queue(self, kind: str, key: str) -> None:
        self.thread.queue(Op(kind, key.encode(), None), lambda outcome: None, 10)

    def run(self, *ops: str) -> list[str]:
        """The order in which operations run that were queued in this one."""
        for op in ops:
            kind, _, key = op.partition(" ")
            if kind == "call":
                self.thread.submit(self._call, lambda outcome: None)
            else:
                self._queue(kind, key)
        self.go.set()
        self.thread.wait_idle(10)
        self.thread.drain()
        assert not self.thread.num_pending and not self.thread.backlog_bytes
        assert not self.thread.store_bytes
        self.thread.close()
        return self.order[1:]

    def _call(self) -> Outcome:
        self.order.append("call")
        return Outcome()


def test_loads_overtake_stores() -> None:
    order = Recorder().run(f"{PUT} a", f"{REMOVE} b", f"{GET} c", f"{PUT} d", f"{PROBE} e")
    assert order == ["get c", "probe e", "put a", "remove b", "put d"]


def test_nothing_overtakes_its_own_key() -> None:
    order = Recorder().run(f"{PUT} a", f"{PUT} b", f"{GET} b", f"{REMOVE} b", f"{GET} a")
    assert order.index("put b") < order.index("get b") < order.index("remove b")
    assert order.index("put a") < order.index("get a")
    order = Recorder().run(f"{GET} a", f"{REMOVE} a", f"{PUT} a", f"{GET} a")
    assert order == ["get a", "remove a", "put a", "get a"]


def test_nothing_overtakes_a_call() -> None:
    order = Recorder().run(f"{PUT} a", "call", f"{GET} b")
    assert order == ["put a", "call", "get b"]


def test_a_tier_with_too_much_on_its_way_refuses_and_counts(harness) -> None:
    clock = ManualClock()
    slow = {"disk_throttle_mb_s": 1.0, "backlog_s": 0.02}  # two and a half pages
    t = harness(2, 32, clock=clock, backpressure="refuse", **slow)
    for number in range(12):
        t.store(t.key(number))
        t.h.wait_io()
        t.h.poll()
    disk = t.h.stats().tiers[1]
    assert 0 < disk.num_refused < 10 and disk.num_entries + disk.num_refused == 10
    assert disk.num_dropped_stores == disk.num_refused, "no tier below took them"
    assert disk.backlog_s > 0.02
    clock.advance(1.0)
    t.settle()
    t.store(t.key(50))
    t.settle()
    assert t.h.stats().tiers[1].num_refused == disk.num_refused, "it has room again"


def test_without_backpressure_the_same_is_taken(harness) -> None:
    t = harness(2, 32, clock=ManualClock(), disk_throttle_mb_s=1.0, backlog_s=0.02)
    for number in range(12):
        t.store(t.key(number))
        t.h.wait_io()
        t.h.poll()
    disk = t.h.stats().tiers[1]
    assert disk.num_refused == 0 and disk.slowed_s == 0 and disk.num_entries == 10


def test_copies_that_a_busy_tier_may_not_take_come_later(harness) -> None:
    clock = ManualClock()
    slow = {"disk_throttle_mb_s": 1.0, "backlog_s": 0.02, "write": "through"}
    t = harness(32, 64, clock=clock, backpressure="refuse", **slow)
    for number in range(20):
        t.store(t.key(number))
    t.h.wait_io()
    assert t.h.stats().tiers[1].num_entries < 20
    for _ in range(40):
        clock.advance(0.05)
        t.settle()
    disk = t.h.stats().tiers[1]
    assert disk.num_entries == 20 and disk.num_refused == 0


def test_stores_wait_and_nothing_is_lost(harness) -> None:
    slow = {"disk_throttle_mb_s": 1.0, "backlog_s": 0.02}
    t = harness(2, 64, clock=RealClock(), backpressure="wait", **slow)
    for number in range(30):
        t.store(t.key(number))
    disk = t.h.stats().tiers[1]
    assert disk.slowed_s > 0 and disk.num_refused == 0 and disk.num_dropped_stores == 0
    assert disk.num_entries == 28


@pytest.mark.timeout(60)
def test_waiting_ends_where_the_clock_stands_still(harness) -> None:
    slow = {"disk_throttle_mb_s": 0.001, "backlog_s": 0.01}
    t = harness(2, 64, clock=ManualClock(), backpressure="wait", **slow)
    for number in range(8):
        t.store(t.key(number))
    assert t.h.stats().tiers[1].slowed_s == 0


def test_a_load_is_estimated_without_the_stores_behind_it(harness) -> None:
    clock = ManualClock()
    t = harness(2, 32, clock=clock, disk_throttle_mb_s=1.0)
    t.store(t.key(0))
    t.store(t.key(1))
    t.store(t.key(2))
    t.h.wait_io()
    clock.advance(1.0)
    t.settle()
    alone_s = t.h.lookups.estimate_load_s([t.key(0)])
    for number in range(3, 9):
        t.store(t.key(number))
    t.h.wait_io()
    t.h.poll()
    assert t.h.stats().tiers[1].backlog_s > 5 * 0.008
    assert t.h.lookups.estimate_load_s([t.key(0)]) == pytest.approx(alone_s, rel=0.2)
