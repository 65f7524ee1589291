"""The dashboard's engine publishes KV events where an environment variable says so."""

from pathlib import Path

import pytest
import zmq

from app import engine_owner
from workbench.errors import EngineDied
from workbench.request import RequestSpec, SamplingParams


def test_the_dashboards_engine_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"ipc://{tmp_path}/kv"
    monkeypatch.setenv(engine_owner.RANDOM_LAYERS_VARIABLE, "2")
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("KV_WORKBENCH_KV_EVENTS", address)
    monkeypatch.setenv("KV_WORKBENCH_KV_EVENTS_REPLAY", f"{address}-replay")
    context = zmq.Context()
    owner = engine_owner.get_owner()
    try:
        owner.client.wait_ready(60)
        sampling = SamplingParams(max_tokens=2)
        owner.client.submit(RequestSpec(prompt="a text of its own " * 3, sampling=sampling))
        asked = context.socket(zmq.DEALER)
        asked.connect(f"{address}-replay")
        asked.send_multipart([b"", bytes(8)])
        assert asked.poll(5000)
        assert asked.recv_multipart()[:3] == [b"", b"", bytes(8)], "the first batch of all"
    finally:
        engine_owner.close_owner()
        context.destroy(linger=0)


def test_an_address_open_to_others_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engine_owner.RANDOM_LAYERS_VARIABLE, "2")
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("KV_WORKBENCH_KV_EVENTS", "tcp://0.0.0.0:5557")
    owner = engine_owner.get_owner()
    try:
        with pytest.raises(EngineDied, match="KV events are published on this machine alone"):
            owner.client.wait_ready(60)
        assert "\n" not in owner.client.death_reason
    finally:
        engine_owner.close_owner()
