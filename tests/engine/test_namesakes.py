"""An id may be used again: the ended request of that name takes nothing from the new one."""

import pytest

from tests.engine.harness import Runner, build, spec, tokens
from workbench.engine.outlet import NUM_FINISHED
from workbench.errors import RequestError
from workbench.request import RequestStatus

MORE = NUM_FINISHED + 8  # so many ends push the first one out of the list


def test_a_namesake_outlives_the_list_of_ended_requests() -> None:
    runner = Runner(build())
    engine = runner.engine
    runner.add(tokens(9), 2, request_id="a")
    runner.drain()
    alone = Runner(build()).one(tokens(9, seed=1), 3 * MORE)

    runner.add(tokens(9, seed=1), 3 * MORE, request_id="a")
    assert "a" not in engine.finished
    runner.step(2)
    for number in range(MORE):
        runner.add(tokens(9, seed=2 + number), 1)
        runner.until(lambda: not engine.scheduler.waiting and len(engine.requests) == 1)
        assert "a" in engine.streams and "a" in engine.retainer.observers
        assert len(engine.finished) <= NUM_FINISHED
    runner.drain()
    assert runner.status["a"] == RequestStatus.FINISHED_LENGTH, runner.errors
    assert runner.outputs["a"] == alone
    assert list(engine.finished)[-1] == "a", "the list is in the order of the ends"


def test_forty_requests_of_one_name_one_after_the_other() -> None:
    runner = Runner(build())
    for number in range(40):
        runner.add(tokens(9, seed=number), 2, request_id="same")
        runner.drain()
        assert runner.status["same"] == RequestStatus.FINISHED_LENGTH
        assert list(runner.engine.finished) == ["same"]
        assert len(runner.outputs["same"]) == 2
    assert set(runner.engine.streams) == set(runner.engine.retainer.observers) == {"same"}


def test_a_request_that_is_refused_drops_nobody() -> None:
    runner = Runner(build({"model.max_model_len": 64}))
    runner.add(tokens(9), 2, request_id="a")
    runner.drain()
    with pytest.raises(RequestError, match="shorten it"):
        runner.engine.add_request(spec(tokens(64), request_id="a"))
    assert "a" in runner.engine.finished and "a" in runner.engine.streams
