"""The throttle of slow tiers: loads before stores, shares by rule, and every byte at the rate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.clock import ManualClock
from workbench.spatial.hierarchy.paced_link import Load, PacedLink

MB = 1_000_000


class Paced:
    """A link and when each transfer took effect, by name."""

    def __init__(self, mb_s: float, split: str = "order", start_s: float = 0.0) -> None:
        self.clock = ManualClock(start_s)
        self.start_s = start_s
        self.link = PacedLink(self.clock)
        self.link.configure(mb_s, split)
        self.ended: dict[str, float] = {}

    def pace(self, name: str, num_bytes: int, load: Load | None = None) -> None:
        def run() -> None:
            self.ended[name] = self.clock.now_s() - self.start_s

        self.link.pace(num_bytes, self.clock.now_s(), run, load)

    def run(self, seconds: float, step_s: float = 0.01) -> None:
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            self.link.advance()


def test_off_nothing_is_held_back() -> None:
    t = Paced(0.0)
    t.pace("a", MB)
    assert t.ended == {"a": 0.0} and len(t.link) == 0 and t.link.wait_s(0.0) == 0


def test_loads_go_before_stores_that_came_first() -> None:
    t = Paced(1.0)
    t.pace("store", MB)
    t.run(0.5)  # half of it has moved
    t.pace("one", MB, Load(1))
    t.pace("two", MB, Load(2))
    assert t.link.wait_s(t.clock.now_s()) == pytest.approx(2.0)
    assert t.link.wait_s(t.clock.now_s(), stores=True) == pytest.approx(2.5)
    t.run(3.0)
    assert t.ended == {"one": pytest.approx(1.5), "two": pytest.approx(2.5),
                       "store": pytest.approx(3.0)}  # fmt: skip


def test_equal_shares_and_shares_by_slack() -> None:
    loads = {"hides": Load(1, 0.25), "waits": Load(2)}
    ended = {}
    for split in ("equal", "slack"):
        t = Paced(1.0, split)
        for name, load in loads.items():
            t.pace(name, MB // 2, load)
        t.pace("ahead", MB // 2, Load(3, 0.0))  # nobody waits for it
        t.run(2.0)
        ended[split] = t.ended
    assert ended["equal"] == dict.fromkeys(
        ("hides", "waits", "ahead"), pytest.approx(1.5, abs=0.02)
    )
    assert ended["slack"]["waits"] == pytest.approx(2 / 3, abs=0.02)  # three quarters of the link
    assert ended["slack"]["hides"] < ended["slack"]["ahead"] == pytest.approx(1.5, abs=0.02)


def test_pages_of_one_request_follow_each_other_without_a_gap() -> None:
    t = Paced(1.0, "equal")
    for number in range(10):
        t.pace(f"{number}", MB // 10, Load(1))
    t.run(1.0, step_s=0.25)  # looked at rarely
    assert list(t.ended) == [f"{number}" for number in range(10)]
    assert t.ended["9"] == pytest.approx(1.0)


def test_another_rate_and_another_rule() -> None:
    t = Paced(1.0)
    t.pace("a", MB, Load(1))
    t.run(0.5)
    t.link.configure(0.5, "order")
    t.run(1.1)
    assert t.ended == {"a": pytest.approx(1.5)}
    t.pace("b", MB, Load(2))
    t.link.configure(0.0, "order")
    assert "b" not in t.ended, "not while settings change"
    t.link.advance()
    assert "b" in t.ended and len(t.link) == 0
    t.link.configure(1.0, "slack")
    t.pace("c", MB, Load(3))
    t.link.release()
    assert "c" in t.ended and len(t.link) == 0


@pytest.mark.parametrize("start_s", [0.0, 86_400.0 * 365])
def test_a_clock_far_from_zero_ends_all_the_same(start_s: float) -> None:
    t = Paced(3.0, "slack", start_s)
    for number in range(20):
        t.pace(f"{number}", 333_333 + number, Load(number % 3, 0.1 * number))
    t.run(3.0, step_s=0.037)
    assert len(t.ended) == 20 and len(t.link) == 0


@settings(deadline=None)
@given(
    split=st.sampled_from(["order", "equal", "slack"]),
    sizes=st.lists(
        st.tuples(st.integers(10, MB), st.integers(-1, 3), st.sampled_from([0.0, 0.2, 5.0])),
        min_size=1, max_size=12,
    ),
    step_s=st.sampled_from([0.01, 0.1, 0.7]),
)  # fmt: skip
def test_the_link_is_never_idle_and_never_faster_than_it_is(
    split: str, sizes: list[tuple[int, int, float]], step_s: float
) -> None:
    t = Paced(1.0, split)
    for number, (size, owner, hiding) in enumerate(sizes):
        t.pace(f"{number}", size, None if owner < 0 else Load(owner, hiding))
    total_s = sum(size for size, *_ in sizes) / MB
    t.run(total_s - 1e-6, step_s=(total_s - 1e-6))
    assert len(t.ended) < len(sizes)
    t.run(step_s, step_s)
    assert len(t.ended) == len(sizes) and len(t.link) == 0
