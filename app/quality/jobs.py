"""The one quality job of this dashboard process, and every report it has brought so far."""

import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import IO

import msgspec

from app.job_process import close_input, death, launch, send
from workbench.clock import Clock, RealClock
from workbench.errors import WorkbenchError
from workbench.quality import job_protocol as protocol
from workbench.quality.job_protocol import JobPlan, ModelLine, ProbesLine, ProgressLine
from workbench.quality.results import QualityReport

MODULE = "workbench.quality.job"
LINE_BYTES = 16 * 2**20
CLOSE_S = 5.0
MAX_RESULTS = 500


class JobBusyError(WorkbenchError):
    """A job runs already: this one was not started."""


@dataclass(frozen=True)
class Result:
    """A setting's report, and what was asked when it was measured.

    `job` counts jobs; `live`: asked for the running engine's own setting.
    """

    report: QualityReport
    weight_format: str
    job: int
    live: bool
    probes: ProbesLine | None = None
    final: bool = False  # its job is over


@dataclass(frozen=True)
class Status:
    """What the newest job does. `state`: none, running, done, time, cancelled or failed.

    `version` counts changes that a page must be drawn anew for; `error` is one sentence.
    """

    state: str = "none"
    kind: str = ""  # live, sweep or inside
    number: int = 0
    share: float = 0.0
    doing: ProgressLine | None = None  # what runs now
    num_settings: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    error: str = ""
    version: int = 0
    cancelling: bool = False

    @property
    def running(self) -> bool:
        """True while its process lives."""
        return self.state == "running"


@dataclass
class _Running:
    process: "subprocess.Popen[bytes]"
    plan: JobPlan
    log: IO[bytes]
    thread: threading.Thread | None = None
    names: set[str] = field(default_factory=set)
    ended: str = ""  # by its own last line
    error: str = ""


class QualityJobs:
    """Starts, follows and ends jobs; every method may be called from any tab's thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or RealClock()
        self._lock = threading.RLock()
        self._running: _Running | None = None
        self._status = Status()
        self._results: dict[str, Result] = {}
        self._model: ModelLine | None = None

    @property
    def status(self) -> Status:
        """What the newest job does now."""
        with self._lock:
            return self._status

    @property
    def model(self) -> ModelLine | None:
        """The model of the newest job, None before one has loaded it."""
        return self._model

    def results(self) -> list[Result]:
        """Every setting's newest report, in the order in which they came first."""
        with self._lock:
            return list(self._results.values())

    def result(self, name: str) -> Result | None:
        """The report of one setting."""
        with self._lock:
            return self._results.get(name)

    def elapsed_s(self) -> float:
        """Seconds since the newest job began, until its end."""
        status = self.status
        end = self.clock.now_s() if status.running else status.ended_s
        return end - status.started_s

    def start(self, plan: JobPlan, kind: str) -> int:
        """Start a job; returns its number. Raises JobBusyError while another one runs."""
        with self._lock:
            if self._status.running:
                raise JobBusyError("a measurement runs already: wait for it, or cancel it")
            log = tempfile.TemporaryFile()  # closed when the job has ended
            process = launch(MODULE, log)
            self._status = Status(
                state="running",
                kind=kind,
                number=self._status.number + 1,
                num_settings=len(plan.settings),
                started_s=self.clock.now_s(),
                version=self._status.version + 1,
            )
            running = _Running(process, plan, log)
            running.thread = threading.Thread(
                target=self._follow, args=(running,), name="quality job", daemon=True
            )
            self._running = running
        send(process, protocol.encode_line(plan))
        running.thread.start()
        return self._status.number

    def cancel(self) -> bool:
        """Ask the running job to stop after its step; False when there is none."""
        with self._lock:
            if self._running is None or not self._status.running:
                return False
            self._running.process.terminate()
            self._status = replace(self._status, cancelling=True)
            return True

    def clear(self) -> None:
        """Forget every report."""
        with self._lock:
            self._results.clear()
            self._changed()

    def close(self) -> None:
        """End the job, by force if it does not end by itself."""
        with self._lock:
            running = self._running
        if running is None:
            return
        close_input(running.process)
        try:
            running.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
        if running.thread is not None:
            running.thread.join(CLOSE_S)

    def _follow(self, running: _Running) -> None:
        """Take the job's lines until its end."""
        output = running.process.stdout
        assert output is not None
        while line := output.readline(LINE_BYTES):
            try:
                self._take(running, protocol.decode_line(line))
            except msgspec.DecodeError as error:
                running.error = running.error or f"its process wrote a line that is none ({error})"
        self._ended(running, running.process.wait())

    def _take(self, running: _Running, line: protocol.Line) -> None:
        with self._lock:
            if isinstance(line, ProgressLine):
                self._status = replace(self._status, share=line.share, doing=line)
            elif isinstance(line, ModelLine):
                self._model = line
                self._changed()
            elif isinstance(line, protocol.ReportLine):
                self._put(running, line.report)
            elif isinstance(line, ProbesLine):
                result = self._results.get(line.name)
                if result is not None:
                    self._results[line.name] = replace(result, probes=line)
                    self._changed()
            elif isinstance(line, protocol.ErrorLine):
                running.error = line.message
            else:
                running.ended = line.why

    def _put(self, running: _Running, report: QualityReport) -> None:
        """Keep a report; its heat maps stay while they are those of the same changes."""
        status, old = self._status, self._results.get(report.name)
        same = old is not None and old.report.changes == report.changes
        running.names.add(report.name)
        self._results[report.name] = Result(
            report=report,
            weight_format=self._model.weight_format if self._model else "",
            job=status.number,
            live=status.kind == "live",
            probes=old.probes if old is not None and same else None,
        )
        while len(self._results) > MAX_RESULTS:
            del self._results[next(iter(self._results))]
        self._changed()

    def _ended(self, running: _Running, code: int) -> None:
        close_input(running.process)
        state, error = running.ended or "failed", running.error
        if error:
            state = "failed"
        elif state == "failed" and code == -signal.SIGTERM and self.status.cancelling:
            state = "cancelled"  # before it could listen: it was still being started
        elif state == "failed":
            error = death(code, running.log)
        running.log.close()
        with self._lock:
            for name in running.names & self._results.keys():
                self._results[name] = replace(self._results[name], final=True)
            self._status = replace(
                self._status, state=state, error=error, ended_s=self.clock.now_s(), cancelling=False
            )
            self._running = None
            self._changed()

    def _changed(self) -> None:
        self._status = replace(self._status, version=self._status.version + 1)


def follow_until(jobs: QualityJobs, done: Callable[[Status], bool], timeout_s: float) -> bool:
    """Wait until the status fulfils `done`; for scripts and tests."""
    end_s = jobs.clock.now_s() + timeout_s
    while not done(jobs.status):
        if jobs.clock.now_s() > end_s:
            return False
        threading.Event().wait(0.05)
    return True
