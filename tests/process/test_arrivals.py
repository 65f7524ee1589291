import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.clock import ManualClock
from workbench.engine.process.arrivals import ArrivalPlanner
from workbench.engine.process.protocol import Arrival, StartWorkload, Workload
from workbench.errors import RequestError
from workbench.request import RequestSpec, SamplingParams


class Submitted:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.requests: list[tuple[str, int, RequestSpec]] = []
        self.refuse: set[int] = set()
        self.planner = ArrivalPlanner(self.submit, self.clock.now_s)

    def submit(self, spec: RequestSpec, workload: str, index: int) -> str:
        if index in self.refuse:
            raise RequestError("the prompt is too long: shorten it")
        self.requests.append((str(len(self.requests)), index, spec))
        return str(len(self.requests) - 1)

    @property
    def indices(self) -> list[int]:
        return [index for _, index, _ in self.requests]


def spec(text: str, seed: int = 0) -> RequestSpec:
    message = [{"role": "user", "content": text}]
    return RequestSpec(messages=message, sampling=SamplingParams(seed=seed))


def test_arrivals_come_when_they_are_due():
    world = Submitted()
    arrivals = [Arrival(float(i), spec(str(i))) for i in range(3)]
    assert world.planner.start(StartWorkload(Workload(name="w", arrivals=arrivals), 0, {})) == ["0"]
    assert world.planner.next_due_in_s() == pytest.approx(1.0)
    world.clock.advance(2.5)
    assert world.planner.due() == ["1", "2"]
    for request_id, _, request in world.requests:
        world.planner.finished(request_id, request, "")
    world.planner.due()
    assert world.planner.names == []


@given(
    limit=st.integers(1, 4),
    count=st.integers(1, 12),
    ends=st.lists(st.integers(0, 30), max_size=60),
    repeat=st.booleans(),
)
def test_never_more_in_flight_than_allowed_and_each_arrival_once_in_order(
    limit, count, ends, repeat
):
    world = Submitted()
    arrivals = [Arrival(0.0, spec(str(i), seed=i)) for i in range(count)]
    plan = Workload(name="w", arrivals=arrivals, max_in_flight=limit, repeat=repeat)
    world.planner.start(StartWorkload(plan, 0, {}))
    open_ids = [request_id for request_id, _, _ in world.requests]
    for end in ends:
        if not open_ids:
            break
        request_id = open_ids.pop(end % len(open_ids))
        world.planner.finished(request_id, world.requests[int(request_id)][2], "")
        open_ids += world.planner.due()
        assert len(open_ids) <= limit
    assert world.indices == list(range(len(world.requests)))
    if repeat:
        assert len(open_ids) == limit
        seeds = [request.sampling.seed for _, _, request in world.requests]
        assert len(set(zip(world.indices, seeds, strict=True))) == len(seeds)
    else:
        assert len(world.requests) <= count


def test_a_later_turn_carries_the_conversation_and_its_answer():
    world = Submitted()
    arrivals = [Arrival(0.0, spec("first")), Arrival(0.0, spec("second"), follows=0)]
    world.planner.start(StartWorkload(Workload(name="w", arrivals=arrivals), 0, {}))
    assert world.indices == [0]
    world.planner.finished("0", world.requests[0][2], "answer")
    world.planner.due()
    assert [m["content"] for m in world.requests[1][2].messages] == ["first", "answer", "second"]


def test_a_later_turn_carries_the_conversation_over_a_restart():
    world = Submitted()
    arrivals = [Arrival(0.0, spec("first")), Arrival(0.0, spec("second"), follows=0)]
    told = {0: [{"role": "user", "content": "first"}, {"role": "assistant", "content": "yes"}]}
    plan = Workload(name="w", arrivals=arrivals)
    world.planner.start(StartWorkload(plan, 1, conversations=told))
    assert [m["content"] for m in world.requests[0][2].messages] == ["first", "yes", "second"]


def test_a_refused_arrival_does_not_stop_the_others_but_a_refused_first_one_is_told():
    world = Submitted()
    arrivals = [Arrival(0.0, spec(str(i))) for i in range(3)]
    world.refuse = {1}
    world.planner.start(StartWorkload(Workload(name="w", arrivals=arrivals), 0, {}))
    assert world.indices == [0, 2]
    world.refuse = {0}
    with pytest.raises(RequestError, match="too long"):
        world.planner.start(StartWorkload(Workload(name="x", arrivals=arrivals), 0, {}))
    assert world.planner.names == ["w"]


def test_going_on_after_a_restart_counts_what_is_still_running():
    world = Submitted()
    arrivals = [Arrival(0.0, spec(str(i))) for i in range(6)]
    plan = Workload(name="w", arrivals=arrivals, max_in_flight=2)
    assert world.planner.start(StartWorkload(plan, 3, {"old": 2})) == ["0"]
    assert world.indices == [3]
    world.planner.finished("old", arrivals[2].spec, "")
    world.planner.due()
    assert world.indices == [3, 4]


def test_an_empty_workload_is_refused():
    with pytest.raises(RequestError, match="workload 'w' has no requests"):
        Submitted().planner.start(StartWorkload(Workload(name="w", arrivals=[]), 0, {}))


@given(first_index=st.integers(0, 20), repeat=st.booleans())
def test_the_first_arrival_after_a_restart_is_due_at_once(first_index, repeat):
    world = Submitted()
    world.clock.advance(100.0)
    arrivals = [Arrival(2.0 * i, spec(str(i))) for i in range(5)]
    plan = Workload(name="w", arrivals=arrivals, repeat=repeat)
    started = world.planner.start(StartWorkload(plan, first_index, {}))
    expected = [first_index] if repeat or first_index < 5 else []
    # Where a cycle ends, its last arrival and the first of the next come together.
    assert world.indices[:1] == expected and len(started) <= 2
