"""The one quality job of this dashboard process, and every report it has brought so far."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from app.job_process import JobProcess
from app.quality.own_text import OwnText, TextFile
from workbench.clock import Clock, RealClock
from workbench.errors import RequestError, WorkbenchError
from workbench.quality import job_protocol as protocol
from workbench.quality.job_protocol import JobPlan, ModelLine, ProbesLine, ProgressLine
from workbench.quality.results import QualityReport

MODULE = "workbench.quality.job"
LINE_BYTES = 16 * 2**20
MAX_RESULTS = 500
MAX_TEXTS = 16  # texts of the user's, so that a report can be looked into on the same one


class JobBusyError(WorkbenchError):
    """A job runs already: this one was not started."""


@dataclass(frozen=True)
class Result:
    """A setting's report, and what was asked when it was measured.

    `job` counts jobs; `live`: asked for the running engine's own setting. `text`: the label of the
    user's text that was read, empty for the built-in one.
    """

    report: QualityReport
    weight_format: str
    job: int
    live: bool
    probes: ProbesLine | None = None
    final: bool = False  # its job is over
    text: str = ""


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


Said: TypeAlias = ModelLine | ProgressLine | protocol.ReportLine | ProbesLine


class QualityJobs:
    """Starts, follows and ends jobs; every method may be called from any tab's thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or RealClock()
        self._lock = threading.RLock()
        self._process: JobProcess | None = None  # of the newest job
        self._names: set[str] = set()  # that it has reported on
        self._status = Status()
        self._results: dict[str, Result] = {}
        self._model: ModelLine | None = None
        self._file: TextFile | None = None  # the newest job's text
        self._label = ""  # of that text
        self._texts: dict[str, OwnText] = {}

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

    def text(self, label: str) -> OwnText | None:
        """The text of a label, None for the built-in one; RequestError if it is held no more."""
        with self._lock:
            if label and label not in self._texts:
                raise RequestError(f"the text {label} is no longer held: choose its file again, "
                                   "and measure the setting anew")  # fmt: skip
            return self._texts.get(label)

    def start(self, plan: JobPlan, kind: str, own: OwnText | None = None) -> int:
        """Start a job, on a text of the user's if there is one; returns its number.

        Raises JobBusyError while another one runs.
        """
        with self._lock:
            if self._status.running:
                raise JobBusyError("a measurement runs already: wait for it, or cancel it")
            plan = self._with_text(plan, own)
            self._process = process = JobProcess(
                MODULE, protocol.decode_line, LINE_BYTES, self._take, self._ended
            )
            self._names = set()
            self._status = Status(
                state="running",
                kind=kind,
                number=self._status.number + 1,
                num_settings=len(plan.settings),
                started_s=self.clock.now_s(),
                version=self._status.version + 1,
            )
        process.begin(plan)
        return self._status.number

    def _with_text(self, plan: JobPlan, own: OwnText | None) -> JobPlan:
        """The plan, reading the user's text from a file that lives as long as the job."""
        self._label = own.label if own else ""
        if own is None:
            return plan
        self._texts.pop(own.label, None)
        self._texts[own.label] = own
        while len(self._texts) > MAX_TEXTS:
            del self._texts[next(iter(self._texts))]
        self._file = TextFile(own)
        read = msgspec.structs.replace(plan.plan, texts=(str(self._file.path),))
        return msgspec.structs.replace(plan, plan=read)

    def cancel(self) -> bool:
        """Ask the running job to stop after its step; False when there is none."""
        with self._lock:
            if self._process is None or not self._status.running:
                return False
            self._process.cancel()
            self._status = replace(self._status, cancelling=True)
            return True

    def clear(self) -> None:
        """Forget every report."""
        with self._lock:
            self._results.clear()
            self._texts.clear()
            self._changed()

    def close(self) -> None:
        """End the job, by force if it does not end by itself."""
        if self._process is not None:
            self._process.close()

    def _take(self, line: Said) -> None:
        with self._lock:
            if isinstance(line, ProgressLine):
                self._status = replace(self._status, share=line.share, doing=line)
            elif isinstance(line, ModelLine):
                self._model = line
                self._changed()
            elif isinstance(line, protocol.ReportLine):
                self._put(line.report)
            else:
                result = self._results.get(line.name)
                if result is not None:
                    self._results[line.name] = replace(result, probes=line)
                    self._changed()

    def _put(self, report: QualityReport) -> None:
        """Keep a report; its heat maps stay while they are those of the same changes and text."""
        status, old = self._status, self._results.get(report.name)
        same = old is not None and old.report.changes == report.changes and old.text == self._label
        self._names.add(report.name)
        self._results[report.name] = Result(
            report=report,
            weight_format=self._model.weight_format if self._model else "",
            job=status.number,
            live=status.kind == "live",
            probes=old.probes if old is not None and same else None,
            text=self._label,
        )
        while len(self._results) > MAX_RESULTS:
            del self._results[next(iter(self._results))]
        self._changed()

    def _ended(self, state: str, error: str) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
            for name in self._names & self._results.keys():
                self._results[name] = replace(self._results[name], final=True)
            self._status = replace(
                self._status, state=state, error=error, ended_s=self.clock.now_s(), cancelling=False
            )
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
