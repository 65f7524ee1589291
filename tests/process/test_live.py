"""The dashboard's server, started as a user starts it, and its socket `/live`."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from process_helpers import LAYERS, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from workbench.snapshot import decode_frame

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Dashboard:
    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/live"

    def engine_pids(self) -> list[int]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        module = "workbench.engine.process.server"
        return [child.pid for child in alive if module in child.cmdline()]

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/_stcore/health", timeout=5)
        except OSError:
            return False
        return True


def open_dashboard(folder: Path, port: int, cache: Path) -> Dashboard:
    log = folder / f"dashboard-{port}-{time.monotonic_ns()}.log"
    environment = {
        **os.environ,
        "KV_WORKBENCH_RANDOM_LAYERS": str(LAYERS),
        "KV_WORKBENCH_CACHE": str(cache),
    }
    command = [
        str(Path(sys.executable).with_name("streamlit")),
        "run",
        str(ROOT / "app"),
        "--server.port",
        str(port),
        "--server.headless",
        "true",
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
    return Dashboard(process, port, log)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory, cache) -> Iterator[Dashboard]:
    opened = open_dashboard(tmp_path_factory.mktemp("dashboard"), free_port(), cache)
    until(opened.is_up)
    yield opened
    opened.process.send_signal(signal.SIGTERM)
    opened.process.wait(30)


@contextmanager
def watch(dashboard: Dashboard, tab: str) -> Iterator[ClientConnection]:
    with connect(dashboard.url, origin=f"http://127.0.0.1:{dashboard.port}") as viewer:
        viewer.send(json.dumps({"tab": tab}))
        yield viewer


def news(viewer: ClientConnection, key: str = "driver", **wanted) -> dict:
    """The next text message that has this key and these values."""
    while True:
        message = viewer.recv(timeout=60)
        if isinstance(message, str):
            value = json.loads(message)
            if key in value and wanted.items() <= value.items():
                return value


def frame_in_state(viewer: ClientConnection, *states: str):
    while True:
        message = viewer.recv(timeout=60)
        if isinstance(message, bytes):
            snapshot = decode_frame(message)[0]
            if snapshot.state in states:
                return snapshot


def test_frames_of_a_running_workload_arrive_and_viewers_are_counted(dashboard):
    with watch(dashboard, "first") as first:
        snapshot = frame_in_state(first, "running", "saturated", "thrashing")
        assert snapshot.requests and snapshot.grid
        with watch(dashboard, "second") as second:
            assert news(first, viewers=2)["driver"] == "first"
            assert frame_in_state(second, "running", "saturated", "thrashing").seq >= snapshot.seq
        assert news(first, viewers=1)["driver"] == "first"


def test_a_driver_whose_tab_is_closed_is_nobody(dashboard):
    with watch(dashboard, "one"):
        pass
    with watch(dashboard, "two") as two:  # nobody took over: the seat is kept, but it is empty
        assert news(two, viewers=1)["driver"] is None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:1"])
def test_a_foreign_page_is_refused(dashboard, origin):
    with pytest.raises(InvalidStatus) as caught:
        connect(dashboard.url, origin=origin)
    assert caught.value.response.status_code == 403


def test_a_foreign_host_name_is_refused(dashboard):
    with socket.create_connection(("127.0.0.1", dashboard.port)) as plain:
        plain.sendall(
            b"GET /live HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert plain.recv(100).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (["no json"], 'the first message must be {"tab": "<id>"}'),
        (['{"tab": "<script>"}'], 'the first message must be {"tab": "<id>"}'),
        (["[1]"], 'the first message must be {"tab": "<id>"}'),
        (['{"tab": "t"}', '{"name": "pause"}'], "this socket takes no commands"),
    ],
)
def test_the_socket_takes_a_hello_and_no_commands(dashboard, messages, reason):
    with connect(dashboard.url) as viewer:
        for message in messages:
            viewer.send(message)
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                viewer.recv(timeout=30)
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1008, reason)


def test_a_viewer_that_does_not_read_misses_frames_and_holds_nobody_up(dashboard):
    with connect(dashboard.url, max_queue=1) as slow, watch(dashboard, "quick") as quick:
        slow.send('{"tab": "slow"}')
        first = frame_in_state(quick, "running", "saturated", "thrashing")
        until(lambda: frame_in_state(
            quick, "running", "saturated", "thrashing", "idle").seq > first.seq + 20)  # fmt: skip


def test_a_second_dashboard_says_so_and_works(dashboard, tmp_path, cache):
    second = open_dashboard(tmp_path, free_port(), cache)
    try:
        until(second.is_up)
        sentence = f"Another dashboard (process {dashboard.process.pid}) runs an engine"
        until(lambda: sentence in second.log.read_text())
        with watch(second, "other") as viewer:
            assert frame_in_state(viewer, "running", "saturated", "thrashing").requests
    finally:
        pids = second.engine_pids()
        second.process.send_signal(signal.SIGINT)  # Ctrl-C
        second.process.wait(30)
    assert len(pids) == 1
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 15)


def test_a_port_in_use_is_named(dashboard, tmp_path, cache):
    other = open_dashboard(tmp_path, dashboard.port, cache)
    assert other.process.wait(60) == 1
    assert f"Port {dashboard.port} is not available" in other.log.read_text()
    remedy = "name another, as in\n`streamlit run app --server.port"  # Streamlit's line has none
    assert remedy in (Path(__file__).parents[2] / "README.md").read_text()


def test_the_dashboard_process_holds_no_torch(dashboard):
    maps = Path(f"/proc/{dashboard.process.pid}/maps").read_text()
    assert "libtorch" not in maps


def test_the_death_of_the_engine_is_told_to_every_viewer(dashboard):
    with watch(dashboard, "witness") as viewer:
        frame_in_state(viewer, "running", "saturated", "thrashing")
        os.kill(dashboard.engine_pids()[0], signal.SIGKILL)
        until(lambda: not dashboard.engine_pids())
        assert "ended by signal SIGKILL" in news(viewer, "dead")["dead"]
    with watch(dashboard, "late") as viewer:
        assert frame_in_state(viewer, "dead").requests
        assert "SIGKILL" in news(viewer, "dead")["dead"]
