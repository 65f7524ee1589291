"""Quality jobs as processes: they measure, refuse a bad plan, are cancelled, and die."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from app.job_process import job_threads
from app.quality.jobs import JobBusyError, QualityJobs, Status, follow_until
from app.quality.settings import format_settings
from app.text import load_texts
from workbench.errors import SettingError
from workbench.lab.job_lines import DoneLine, ErrorLine, encode_line
from workbench.model.random_launch import random_model
from workbench.quality.job_protocol import (
    JobPlan,
    Line,
    ProgressLine,
    decode_line,
    decode_plan,
)
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting
from workbench.quality.run import Doing, measure

SMALL = QualityPlan(context=160, scored=16, num_windows=1, context_chunk=32)
LONG = QualityPlan(context=1024, scored=256, num_windows=64)
INT8 = Setting(name="int8", changes={"cache.k_format": "int8", "cache.v_format": "int8"})


@pytest.fixture
def jobs() -> Iterator[QualityJobs]:
    owner = QualityJobs()
    yield owner
    owner.close()


def run_process(plan: bytes) -> tuple[list[Line], int]:
    """All lines of a job that is given `plan`, and its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench.quality.job"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(plan)
    process.stdin.flush()
    lines = [decode_line(line) for line in process.stdout]
    process.stdin.close()
    return lines, process.wait(20)


def over(status: Status) -> bool:
    return not status.running


def test_a_job_measures_and_ends(jobs: QualityJobs) -> None:
    plan = JobPlan(settings=[*format_settings()[:1], INT8], plan=SMALL, random_layers=2,
                   probes=True)  # fmt: skip
    assert jobs.start(plan, "sweep") == 1
    with pytest.raises(JobBusyError, match="runs already: wait for it, or cancel it"):
        jobs.start(plan, "sweep")
    assert follow_until(jobs, over, 60)
    assert jobs.status.state == "done", jobs.status
    assert [item.report.name for item in jobs.results()] == ["bf16", "int8"]
    for item in jobs.results():
        assert item.final and item.report.num_scored_tokens == 16
        assert item.probes is not None and len(item.probes.k_snr_db) == 2
        assert item.weight_format == "fp32"
    assert jobs.model is not None and jobs.model.num_kv_heads == 2
    assert jobs.result("int8").report.bytes.ratio_to_bf16 < 2  # type: ignore[union-attr]
    version = jobs.status.version
    jobs.clear()
    assert jobs.results() == [] and jobs.status.version > version


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (b"not json\n", "the plan is no JSON"),
        (b"{}\n", "the plan is not understood"),
        (b'{"settings": [], "plan": {}}\n', "the plan has 0 settings: give 1 to 64"),
        (b'{"settings": [{"name": "a", "changes": {}}], "plan": {"context": 0}}\n',
         "context = 0 is out of range"),
        (b'{"settings": [{"name": "a", "changes": {}, "more": 1}], "plan": {}}\n',
         "not understood"),
        (b'{"x": "' + b"y" * 2**20 + b'"}\n', "larger than 1024 KiB"),
        (b"\xff\n", "the plan is no"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_one_sentence(plan: bytes, told: str) -> None:
    with pytest.raises(SettingError, match=told) as refused:
        decode_plan(plan)
    assert "\n" not in str(refused.value)


def test_a_bad_plan_ends_the_process_with_its_sentence() -> None:
    lines, code = run_process(b"not json\n")
    assert code == 2 and len(lines) == 1
    assert isinstance(lines[0], ErrorLine) and "the plan is no JSON" in lines[0].message


def test_lines_survive_the_way_and_others_are_refused() -> None:
    plan = JobPlan(settings=[INT8], plan=SMALL)
    assert decode_plan(encode_line(plan)) == plan
    assert decode_line(encode_line(DoneLine(why="done"))) == DoneLine(why="done")
    with pytest.raises(msgspec.DecodeError):
        decode_line(b'{"type": "nothing"}')


def test_cancel_keeps_what_was_measured(jobs: QualityJobs) -> None:
    assert not jobs.cancel()
    jobs.start(JobPlan(settings=[INT8], plan=LONG, random_layers=2), "sweep")
    assert follow_until(jobs, lambda status: bool(jobs.results()), 60)
    assert jobs.cancel() and jobs.status.cancelling
    assert follow_until(jobs, over, 30)
    assert jobs.status.state == "cancelled" and not jobs.status.cancelling
    (result,) = jobs.results()
    assert result.final and 0 < result.report.num_windows < LONG.num_windows


def test_cancel_while_the_process_starts(jobs: QualityJobs) -> None:
    jobs.start(JobPlan(settings=[INT8], plan=LONG, random_layers=2), "sweep")
    assert jobs.cancel()
    assert follow_until(jobs, over, 30)
    assert jobs.status.state == "cancelled" and jobs.status.error == ""


def test_time_is_up(jobs: QualityJobs) -> None:
    jobs.start(
        JobPlan(settings=[INT8], plan=LONG, random_layers=2, time_limit_s=2.0), "live"
    )  # fmt: skip
    assert follow_until(jobs, over, 60)
    assert jobs.status.state == "time"


@pytest.mark.parametrize(("asked", "num_windows"), [(3, 0), (10, 0), (17, 1), (25, 1)])
def test_a_run_stops_inside_a_window_and_leaves_it_out(asked: int, num_windows: int) -> None:
    plan = msgspec.structs.replace(SMALL, num_windows=2)  # 7 questions a run, 2 runs a window
    questions = itertools.count(1)
    doing: list[Doing] = []
    reports = measure(
        random_model(2), [Setting(name="int8", changes=INT8.changes)], plan,
        lambda share, what: doing.append(what), lambda: next(questions) >= asked,
    )  # fmt: skip
    assert [report.num_windows for report in reports] == [num_windows] * bool(num_windows)
    assert next(questions) == asked + 1, "it went on after it was told to stop"
    assert str(doing[0]) == "window 1: full cache"
    assert (doing[-1].kind, doing[-1].number) == ("window", num_windows + 1)


def test_the_page_has_words_for_all_that_a_job_does() -> None:
    lines, code = run_process(
        encode_line(JobPlan(settings=[INT8], random_layers=2, probes=True,
                            plan=msgspec.structs.replace(SMALL, needle=True)))
    )  # fmt: skip
    assert code == 0
    done = [line for line in lines if isinstance(line, ProgressLine)]
    assert {line.kind for line in done} == {"loading", "window", "needle", "probe", "done"}
    assert {line.setting for line in done} == {"", "int8"}
    texts = load_texts()
    for line in done:
        assert "{" not in texts(f"quality.doing.{line.kind}", n=line.number, setting="int8")


def test_a_killed_job_is_told_and_another_can_be_refused(jobs: QualityJobs) -> None:
    jobs.start(JobPlan(settings=[INT8], plan=LONG, random_layers=2), "sweep")
    assert follow_until(jobs, lambda status: bool(jobs.results()), 60)
    os.kill(job_pid(), signal.SIGKILL)
    assert follow_until(jobs, over, 30)
    assert jobs.status.state == "failed" and "ended by signal 9" in jobs.status.error
    assert jobs.results()[0].final
    bad = Setting(name="bad", changes={"cache.k_format": "int7"})
    jobs.start(JobPlan(settings=[bad], plan=SMALL, random_layers=2), "sweep")
    assert follow_until(jobs, over, 60) and jobs.status.state == "failed"
    assert "cache.k_format = 'int7' is not allowed: choose one of" in jobs.status.error


def test_the_job_ends_with_its_owner() -> None:
    owner = QualityJobs()
    owner.start(JobPlan(settings=[INT8], plan=LONG, random_layers=2), "sweep")
    assert follow_until(owner, lambda status: bool(owner.results()), 60)
    pid = job_pid()
    owner.close()
    assert not Path(f"/proc/{pid}").exists() and owner.status.state == "cancelled"


def test_threads_leave_the_engine_its_cores() -> None:
    assert [job_threads(cores) for cores in (1, 2, 4, 16)] == [1, 1, 1, 4]


def job_pid(parent: int | None = None) -> int:
    """Process id of the quality job that this process, or `parent`, has started."""
    parent = parent or os.getpid()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            ppid = next(line for line in status.read_text().splitlines()
                        if line.startswith("PPid:"))  # fmt: skip
            command = (status.parent / "cmdline").read_bytes()
        except (OSError, StopIteration):
            continue
        if b"workbench.quality.job" in command and int(ppid.split()[1]) == parent:
            return int(status.parent.name)
    raise AssertionError("no job process is there")
