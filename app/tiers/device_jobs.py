"""The one devices job of this dashboard process, and the newest result of each placement."""

import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass, replace
from typing import IO

import msgspec

from app.job_process import close_input, death, launch, send
from workbench.clock import Clock, RealClock
from workbench.errors import WorkbenchError
from workbench.lab import devices_protocol as protocol
from workbench.lab.devices_protocol import DevicesPlan, ProgressLine, ResultLine

MODULE = "workbench.lab.devices_job"
LINE_BYTES = 2**22
CLOSE_S = 5.0


@dataclass(frozen=True)
class DeviceStatus:
    """What the newest job does. `state`: none, running, done, cancelled or failed.

    `version` counts changes that the page must be drawn anew for; `error` is one sentence.
    """

    state: str = "none"
    doing: ProgressLine | None = None
    error: str = ""
    started_s: float = 0.0
    ended_s: float = 0.0
    version: int = 0
    cancelling: bool = False

    @property
    def running(self) -> bool:
        """True while its process lives."""
        return self.state == "running"


class DeviceJobs:
    """Starts, follows and ends devices jobs; any tab's thread may call."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or RealClock()
        self._lock = threading.RLock()
        self._status = DeviceStatus()
        self._results: dict[str, ResultLine] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._end = self._error = ""  # as the job's last lines have it

    @property
    def status(self) -> DeviceStatus:
        """What the newest job does now."""
        with self._lock:
            return self._status

    def results(self) -> list[ResultLine]:
        """The newest result of each placement, in the order in which they came first."""
        with self._lock:
            return list(self._results.values())

    def elapsed_s(self) -> float:
        """Seconds since the newest job began, until its end."""
        status = self.status
        end = self.clock.now_s() if status.running else status.ended_s
        return end - status.started_s

    def start(self, plan: DevicesPlan) -> None:
        """Start a job; WorkbenchError while another one runs."""
        with self._lock:
            if self._status.running:
                raise WorkbenchError("placements are compared already: wait for it, or cancel it")
            log = tempfile.TemporaryFile()  # closed when the job has ended
            self._process = process = launch(MODULE, log)
            self._end = self._error = ""
            self._status = DeviceStatus(
                state="running", started_s=self.clock.now_s(), version=self._status.version + 1
            )
            self._thread = threading.Thread(
                target=self._follow, args=(process, log), name="devices job", daemon=True
            )
        send(process, protocol.encode_line(plan))
        self._thread.start()

    def cancel(self) -> bool:
        """Ask the running job to stop after its step; False when there is none."""
        with self._lock:
            if self._process is None or not self._status.running:
                return False
            self._process.terminate()
            self._status = replace(self._status, cancelling=True)
            return True

    def close(self) -> None:
        """End the job, by force if it does not end by itself."""
        with self._lock:
            process, thread = self._process, self._thread
        if process is None:
            return
        close_input(process)
        try:
            process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if thread is not None:
            thread.join(CLOSE_S)

    def _follow(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        """Take the job's lines until its end."""
        assert process.stdout is not None
        while line := process.stdout.readline(LINE_BYTES):
            try:
                self._take(protocol.decode_line(line))
            except msgspec.DecodeError as error:
                self._error = self._error or f"its process wrote a line that is none ({error})"
        code = process.wait()
        close_input(process)
        state, error = self._end or "failed", self._error
        if error:
            state = "failed"
        elif state == "failed" and code == -signal.SIGTERM and self.status.cancelling:
            state = "cancelled"  # before it could listen: it was still being started
        elif state == "failed":
            error = death(code, log)
        log.close()
        with self._lock:
            self._process = None
            self._status = replace(
                self._status, state=state, error=error, ended_s=self.clock.now_s(),
                cancelling=False, version=self._status.version + 1,
            )  # fmt: skip

    def _take(self, line: protocol.Line) -> None:
        with self._lock:
            if isinstance(line, ProgressLine):
                self._status = replace(self._status, doing=line)
            elif isinstance(line, ResultLine):
                self._results[line.name] = line
                self._status = replace(self._status, version=self._status.version + 1)
            elif isinstance(line, protocol.ErrorLine):
                self._error = line.message
            else:
                self._end = line.why
