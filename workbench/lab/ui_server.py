"""The dashboard's server as a user starts it, and viewers of its live socket that only read."""

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psutil
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from workbench.clock import RealClock
from workbench.errors import WorkbenchError

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
_POLL_S = 0.05
_KEPT = 60  # frames


class DashboardServer:
    """`streamlit run app` on a free port; ends with the `with` block.

    `random_layers` > 0 runs a small random model. Raises WorkbenchError if it does not come up.
    """

    def __init__(self, log: Path, random_layers: int = 0) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/"
        environment = dict(os.environ)
        if random_layers:
            environment["KV_WORKBENCH_RANDOM_LAYERS"] = str(random_layers)
        clock = RealClock()
        started_s = clock.now_s()
        command = [
            sys.executable, "-m", "streamlit", "run", "app", "--server.port", str(self.port),
            "--server.headless", "true",
        ]  # fmt: skip
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        self._log = log
        self._wait_until_it_answers()
        self.start_s = clock.now_s() - started_s  # to the first answer

    def _wait_until_it_answers(self) -> None:
        rest = threading.Event()
        for _ in range(int(START_TIMEOUT_S / _POLL_S)):
            try:
                with urllib.request.urlopen(self.url + "_stcore/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass  # not listening yet: asked again, until it is or its process has ended
            if self._process.poll() is not None:
                break
            rest.wait(_POLL_S)
        last = (self._log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        self.close()
        raise WorkbenchError(f"the dashboard did not start ({last}): try `streamlit run app`")

    def __enter__(self) -> "DashboardServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ctrl-C, as a user ends it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds so far of (engine process, dashboard server)."""
        server = psutil.Process(self._process.pid)
        for child in server.children():
            if "workbench.engine.process.server" in child.cmdline():
                return _cpu_s(child), _cpu_s(server)
        raise WorkbenchError("the dashboard's engine process has ended: start the bench again")

    def viewer(self, name: str) -> "Viewer":
        """A new viewer; close it with `close` or a `with` block."""
        return Viewer(f"ws://127.0.0.1:{self.port}/live", name)


class Viewer:
    """A thread that takes frames off the live socket, as a browser tab does, and keeps the newest.

    `frames` are raw bytes in order of arrival; `num_frames` counts all.
    """

    def __init__(self, url: str, name: str) -> None:
        self.frames: list[bytes] = []
        self.num_frames = 0
        self._arrived = threading.Condition()
        self._open = ExitStack()
        self._socket: ClientConnection = self._open.enter_context(
            connect(url, max_size=None, compression=None)
        )
        self._socket.send(f'{{"tab": "{name}"}}')
        self._thread = threading.Thread(target=self._read, name=f"viewer {name}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._socket:
                if isinstance(message, bytes):
                    with self._arrived:
                        self.frames = [*self.frames[1 - _KEPT :], message]
                        self.num_frames += 1
                        self._arrived.notify_all()
        except ConnectionClosed:
            return  # by us, or the server has ended: then `wait_frames` tells of it

    def wait_frames(self, count: int, timeout_s: float = 60.0) -> bytes:
        """Wait for `count` more frames; returns the newest."""
        with self._arrived:
            wanted = self.num_frames + count
            if not self._arrived.wait_for(lambda: self.num_frames >= wanted, timeout_s):
                raise WorkbenchError(f"no frame came within {timeout_s:g} s: the engine is stuck")
            return self.frames[-1]

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._open.close()
        self._thread.join(5)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
