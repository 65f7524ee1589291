"""The one devices job of this dashboard process, and the newest result of each placement."""

import threading
from dataclasses import dataclass, replace

from app.job_process import JobProcess
from workbench.clock import Clock, RealClock
from workbench.errors import WorkbenchError
from workbench.lab import devices_protocol as protocol
from workbench.lab.devices_protocol import DevicesPlan, ProgressLine, ResultLine

MODULE = "workbench.lab.devices_job"
LINE_BYTES = 2**22


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
        self.process: JobProcess | None = None  # of the newest job

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
            self.process = process = JobProcess(
                MODULE, protocol.decode_line, LINE_BYTES, self._take, self._ended
            )
            self._status = DeviceStatus(
                state="running", started_s=self.clock.now_s(), version=self._status.version + 1
            )
        process.begin(plan)

    def cancel(self) -> bool:
        """Ask the running job to stop after its step; False when there is none."""
        with self._lock:
            if self.process is None or not self._status.running:
                return False
            self.process.cancel()
            self._status = replace(self._status, cancelling=True)
            return True

    def close(self) -> None:
        """End the job, by force if it does not end by itself."""
        if self.process is not None:
            self.process.close()

    def _take(self, line: ProgressLine | ResultLine) -> None:
        with self._lock:
            if isinstance(line, ProgressLine):
                self._status = replace(self._status, doing=line)
            else:
                self._results[line.name] = line
                self._status = replace(self._status, version=self._status.version + 1)

    def _ended(self, state: str, error: str) -> None:
        with self._lock:
            self._status = replace(
                self._status, state=state, error=error, ended_s=self.clock.now_s(),
                cancelling=False, version=self._status.version + 1,
            )  # fmt: skip
