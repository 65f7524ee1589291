"""Who follows the events by their numbers misses no new engine, whatever ended the one before."""

import os
import signal

import pytest
from process_helpers import LAYERS, finished, prompt, small_config, until

from workbench.client import EngineClient
from workbench.clock import RealClock
from workbench.config import replace_settings
from workbench.engine.process.host import EngineHost
from workbench.errors import TierError
from workbench.events import EVENTS_PER_PROCESS, Event
from workbench.model.random_launch import random_model


def assert_new_engine(events: list[Event], after: int) -> None:
    assert (events[0].kind, events[0].data) == ("engine", {"what": "started"})
    numbers = [event.seq for event in events]
    assert after < numbers[0] and numbers == sorted(set(numbers))


def test_numbers_go_on_in_the_next_process() -> None:
    client = EngineClient.start(small_config(), wait=True, random_layers=LAYERS)
    try:
        for at in range(3):
            finished(client, client.submit(prompt(f"request {at}", max_tokens=3)))
            known = client.events_since(0)
            assert {event.seq // EVENTS_PER_PROCESS for event in known} == {at}
            os.kill(client.pid, signal.SIGKILL)
            until(lambda: client.state == "dead")
            client.restart(wait=True)
            assert_new_engine(client.events_since(known[-1].seq), known[-1].seq)
            assert client.snapshot().events[0].seq > known[-1].seq
    finally:
        client.close()


def test_numbers_go_on_after_a_reload_and_one_that_failed() -> None:
    host = EngineHost(RealClock(), lambda message: None, first_request_number=1, last_event_seq=7)
    config = small_config()
    host.adopt(config, random_model(LAYERS))
    assert_new_engine(host.engine.events_since(7), 7)
    host.submit(prompt("it goes on", max_tokens=30))
    host.step()
    last = host.engine.log.last_seq
    host.adopt(config, random_model(LAYERS + 1))
    assert_new_engine(host.engine.events_since(last), last)
    last = host.engine.log.last_seq
    broken = replace_settings(config, {"tiers.disk_mib": 1.0, "tiers.disk_path": "/dev/null/x"})
    with pytest.raises(TierError):
        host.adopt(broken, random_model(LAYERS))
    assert_new_engine(host.engine.events_since(last), last)
    host.close()
