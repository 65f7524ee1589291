import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from process_helpers import finished, prompt, until

from workbench.client import EngineClient
from workbench.errors import RequestError, SettingError, WorkbenchError
from workbench.snapshot import decode_frame


def test_the_client_never_imports_torch():
    code = "import workbench.client, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_request_streams_and_its_tokens_are_journaled(client: EngineClient):
    request_id = client.submit(prompt("hello", max_tokens=30))
    entry = finished(client, request_id)
    assert entry.status == "finished_length"
    assert len(entry.token_ids) == 30
    assert entry.text


def test_many_threads_may_ask_at_once(client: EngineClient):
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: ids.append(client.submit(prompt(f"thread {n}"))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8
    assert all(len(finished(client, request_id).token_ids) == 40 for request_id in ids)


def test_settings_change_and_bad_ones_change_nothing(client: EngineClient):
    report = client.apply({"scheduling.order": "priority"})
    assert report.changes == {"scheduling.order": "priority"}
    assert client.config.scheduling.order == "priority"
    assert client.preview({"scheduling.order": "fcfs"}).preview
    assert client.snapshot().settings["scheduling.order"] == "priority"
    with pytest.raises(SettingError, match="unknown setting 'cache.size'"):
        client.apply({"cache.size": 1})
    with pytest.raises(SettingError, match="scheduling.token_budget = 0 is out of range"):
        client.apply({"scheduling.token_budget": 0, "scheduling.order": "fcfs"})
    assert client.snapshot().settings["scheduling.order"] == "priority"
    client.apply({"scheduling.order": "fcfs"})


def test_pause_stops_steps_and_the_clock_and_step_runs_one(client: EngineClient):
    request_id = client.submit(prompt("a long one", max_tokens=900))
    until(lambda: len(client.outputs(request_id).token_ids) > 3)
    client.pause()
    first = client.snapshot()
    time.sleep(0.3)
    second = client.snapshot()
    assert (first.state, first.step, first.time_s) == ("paused", second.step, second.time_s)
    assert client.step() is True
    third = client.snapshot()
    assert third.step == second.step + 1
    assert third.time_s > second.time_s
    client.play()
    until(lambda: client.snapshot().step > third.step + 3)
    assert client.abort(request_id)
    assert not client.abort(request_id)
    assert finished(client, request_id).status == "finished_aborted"
    client.pause()
    assert client.step() is False


def test_slow_motion_does_not_count_as_latency(client: EngineClient):
    request_id = client.submit(prompt("slow", max_tokens=900))
    until(lambda: len(client.outputs(request_id).token_ids) > 3)
    client.set_speed(0.1)
    first, started_s = client.snapshot(), time.monotonic()
    until(lambda: client.snapshot().step >= first.step + 3)
    wall_s = time.monotonic() - started_s
    assert client.snapshot().time_s - first.time_s < wall_s / 3
    assert client.snapshot().speed == 0.1
    with pytest.raises(SettingError, match="speed = 3 is out of range: 0.001 to 1"):
        client.set_speed(3)


def test_frames_are_made_only_while_somebody_watches(client: EngineClient):
    first = decode_frame(client.latest_frame())[0].seq
    time.sleep(0.5)
    assert decode_frame(client.latest_frame())[0].seq == first + 1
    client.submit(prompt("watch me", max_tokens=900))
    frames: list[bytes] = []
    stop = client.subscribe(frames.append)
    until(lambda: len(frames) > 5)
    stop()
    snapshots = [decode_frame(frame)[0] for frame in frames]
    assert [s.seq for s in snapshots] == sorted({s.seq for s in snapshots})
    assert snapshots[-1].state == "running" and snapshots[-1].num_running == 1
    assert snapshots[-1].grid[0].num_cells > 0
    time.sleep(0.3)
    seen = len(frames)
    time.sleep(0.3)
    assert len(frames) == seen


def test_when_idle_the_invariants_are_checked(client: EngineClient):
    finished(client, client.submit(prompt("check")))
    step = client.snapshot().step
    until(lambda: client.snapshot().integrity is not None
          and client.snapshot().integrity.step >= step)  # fmt: skip
    assert client.snapshot().integrity.ok, client.snapshot().integrity.message
    assert client.check().ok
    assert client.snapshot().state == "idle"


def test_each_bad_request_ends_in_one_sentence(client: EngineClient):
    with pytest.raises(RequestError, match=r"the prompt has \d+ tokens and the model takes"):
        client.submit(prompt("x" * 5000))
    with pytest.raises(RequestError, match="there is no request 'none'"):
        client.outputs("none")
    with pytest.raises(RequestError, match="request none is not running"):
        client.start_shadow("none")
    with pytest.raises(WorkbenchError):
        client.inspect("G9", 0)
    with pytest.raises(RequestError, match="line 1: is not JSON"):
        client.load_jsonl(b"nothing")
    with pytest.raises(RequestError, match="the file is empty: give one request a line"):
        client.load_jsonl(b"")


def test_a_dropped_file_runs_what_it_can(client: EngineClient):
    loaded = client.load_jsonl(b'{"prompt": "a", "max_tokens": 2}\n{"prompt": 1}\n{"prompt": "'
                               + b"x" * 5000 + b'"}')  # fmt: skip
    assert len(loaded) == 1
    assert [problem[:7] for problem in loaded.problems] == ["line 2:", "line 3:"]
    assert finished(client, loaded[0]).status.startswith("finished")


def test_a_workload_keeps_arriving_and_ends_when_cleared(client: EngineClient):
    first = client.start_workload("shared_chat", num_requests=2, max_tokens=6)
    assert len(first) == 1  # the others come when the shared prompt is there
    until(lambda: "shared_chat" in client.journal.workloads)  # which hears of it a little later
    until(lambda: client.journal.workloads["shared_chat"].next_index > 5)
    assert client.clear_requests() > 0
    until(lambda: client.journal.workloads == {} and client.snapshot().state == "idle")


def test_events_and_blocks_are_there_to_be_looked_at(client: EngineClient):
    before = client.events_since(0)[-1].seq
    request_id = client.submit(prompt("look", max_tokens=900))
    until(lambda: any(e.request_id == request_id for e in client.events_since(before)))
    until(lambda: client.snapshot().requests[0].num_pages > 0)
    client.pause()
    _, cells, tables = decode_frame(client.latest_frame())
    block = client.inspect("G1", int(tables[0]))
    assert block.owners == [request_id] and block.num_bytes > 0
    client.start_shadow(request_id)
    assert client.step()
    client.stop_shadow()


def test_the_sockets_are_private(client: EngineClient):
    folder = Path(client._connection.log_file).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("commands", "frames", "outputs"):
        assert stat.S_IMODE((folder / name).stat().st_mode) & 0o077 == 0


def test_loading_the_model_again_keeps_streams(client: EngineClient):
    alone = finished(client, client.submit(prompt("keep me", max_tokens=300))).token_ids
    request_id = client.submit(prompt("keep me", max_tokens=300))
    until(lambda: len(client.outputs(request_id).token_ids) > 5)
    version = client.snapshot().config_version
    preview = client.preview({"model.weight_format": "fp32"})
    assert preview.kinds == {"model.weight_format": "restart"}
    report = client.apply({"model.weight_format": "fp32"})
    assert report.kinds == {"model.weight_format": "restart"}
    assert report.version == version + 1 == client.snapshot().config_version
    assert finished(client, request_id).token_ids == alone
