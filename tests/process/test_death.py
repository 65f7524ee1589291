import os
import signal
import subprocess
import sys

import pytest
from process_helpers import LAYERS, finished, prompt, small_config, until

from workbench.client import EngineClient
from workbench.config import EngineConfig, replace_settings
from workbench.engine.process.connection import describe_death
from workbench.engine.process.endpoints import Endpoints
from workbench.engine.process.protocol import parse_detail
from workbench.errors import EngineDied, RequestError
from workbench.snapshot import Snapshot, decode_frame


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def test_killed_mid_step_every_stream_goes_on_where_it_was():
    client = EngineClient.start(small_config(), wait=True, random_layers=LAYERS)
    try:
        specs = [
            prompt(f"stream {n}", max_tokens=250, seed=n, temperature=0.8 * (n % 2))
            for n in range(4)
        ]
        undisturbed = [
            finished(client, request_id).token_ids
            for request_id in [client.submit(spec) for spec in specs]
        ]
        frames: list[bytes] = []
        reasons: list[str] = []
        client.subscribe(frames.append)
        client.on_death(reasons.append)
        ids = [client.submit(spec) for spec in specs]
        client.start_workload("shared_chat", num_requests=1, max_tokens=4)
        until(lambda: all(len(client.outputs(i).token_ids) > 20 for i in ids))
        os.kill(client.pid, signal.SIGKILL)
        until(lambda: reasons)
        assert client.state == "dead"
        assert reasons == [client.death_reason]
        assert "the engine was ended by signal SIGKILL" in client.death_reason
        last = decode_frame(client.latest_frame())[0]
        assert (last.state, last.state_detail) == ("dead", client.death_reason)
        assert client.snapshot().requests
        for call in (client.play, lambda: client.submit(specs[0]), lambda: client.apply({})):
            with pytest.raises(EngineDied, match="press Restart, streams go on where they were"):
                call()
        received = [len(client.outputs(i).token_ids) for i in ids]
        assert all(20 < count < 250 for count in received)
        next_index = client.journal.workloads["shared_chat"].next_index

        assert set(ids) <= set(client.restart())
        assert [finished(client, i).token_ids for i in ids] == undisturbed
        assert client.state == "running"
        until(lambda: client.journal.workloads["shared_chat"].next_index > next_index + 1)
        seen = len(frames)
        until(lambda: len(frames) > seen + 2)  # who watched goes on watching
        new = client.submit(specs[0])
        assert new not in ids
        client.restart(resubmit=False, wait=True)  # a living engine is replaced as well
        assert client.outputs(new).status == "finished_aborted"
        assert client.snapshot().requests == []
    finally:
        client.close()
    assert not alive(client.pid)


def test_a_model_that_cannot_be_loaded_is_named():
    config = replace_settings(EngineConfig(), {"model.path": "/nowhere/model.gguf"})
    client = EngineClient.start(config)
    try:
        with pytest.raises(EngineDied) as caught:
            client.submit(prompt("waits for the model"))
        assert str(caught.value) == (
            "the engine stopped: model path /nowhere/model.gguf does not exist: give a .gguf file "
            "or a model folder"
        )
        assert client.state == "dead"
        assert decode_frame(client.latest_frame())[0].state == "dead"
    finally:
        client.close()


def test_without_a_network_the_first_start_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    client = EngineClient.start()
    seen: list[Snapshot] = []
    client.subscribe(lambda frame: seen.append(decode_frame(frame)[0]))
    try:
        with pytest.raises(EngineDied, match="the model could not be downloaded .*check the netw"):
            client.wait_ready()
        details = [parse_detail(s.state_detail) for s in seen if s.state == "loading"]
        fetching = [numbers for kind, numbers in details if kind == "fetch"]
        assert fetching[0]["total_bytes"] > fetching[0]["num_bytes"] == 0
    finally:
        client.close()


def test_a_cache_folder_that_is_not_writable_is_named(monkeypatch):
    monkeypatch.setenv("KV_WORKBENCH_CACHE", "/dev/null/cache")
    client = EngineClient.start()
    try:
        with pytest.raises(EngineDied, match="the cache folder /dev/null/cache is not writable"):
            client.wait_ready()
    finally:
        client.close()


def test_a_budget_smaller_than_one_request_is_named():
    config = small_config(cache__hbm_budget_mib=0.0625, cache__block_size=64)
    client = EngineClient.start(config, random_layers=LAYERS)
    try:
        with pytest.raises(RequestError, match=r"raise cache\.hbm_budget_mib"):
            client.submit(prompt("x" * 1500))
        assert client.state == "running"
    finally:
        client.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_engine_ends_with_its_parent(how):
    code = (
        "import sys, time; from workbench.client import EngineClient\n"
        f"client = EngineClient.start(random_layers={LAYERS})\n"
        "print(client.pid, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(how)
    until(lambda: not alive(pid), 15)


def test_sigterm_and_close_leave_nothing_behind():
    client = EngineClient.start(small_config(), random_layers=LAYERS)
    until(lambda: client.latest_frame())
    os.kill(client.pid, signal.SIGTERM)
    until(lambda: client.state == "dead")
    folder = client._connection.log_file.parent
    assert folder.exists()
    client.close()
    client.close()
    assert not folder.exists()


def test_an_error_in_a_step_ends_the_process_with_one_line(tmp_path):
    endpoints = Endpoints(str(tmp_path))
    endpoints.crash_file.write_text("RuntimeError: out of scratch in step 12")
    assert describe_death(70, endpoints) == (
        "the engine stopped: RuntimeError: out of scratch in step 12"
    )
    endpoints.crash_file.unlink()
    assert describe_death(-11, endpoints) == "the engine was ended by signal SIGSEGV"
    assert describe_death(-200, endpoints) == "the engine was ended by signal 200"
    assert describe_death(3, endpoints) == "the engine ended with exit code 3"
