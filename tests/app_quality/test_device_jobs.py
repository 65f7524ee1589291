"""Devices jobs as processes: they compare placements, refuse a bad plan, are cancelled, and die."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.text import load_texts
from app.tiers.device_figures import balance_figure, bytes_figure
from app.tiers.device_jobs import DeviceJobs
from workbench.errors import SettingError, WorkbenchError
from workbench.lab.devices_protocol import DevicesPlan, decode_plan
from workbench.lab.job_lines import encode_line

TINY = DevicesPlan(placements=["tp2", "ep2"], new_tokens=5)


@pytest.fixture
def jobs() -> Iterator[DeviceJobs]:
    owner = DeviceJobs()
    yield owner
    owner.close()


def wait_until(done: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it never came"
        threading.Event().wait(0.05)


def ranks_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def test_placements_are_compared_and_results_stay(jobs: DeviceJobs) -> None:
    jobs.start(TINY)
    with pytest.raises(WorkbenchError, match="compared already: wait for it, or cancel it"):
        jobs.start(TINY)
    seen = set()
    wait_until(lambda: seen.add(jobs.status.doing) or not jobs.status.running)  # type: ignore[func-returns-value]
    assert jobs.status.state == "done", jobs.status.error
    assert {line.name for line in seen if line} >= {"one", "tp2", "ep2"}
    shares = [line.share for line in seen if line]
    assert all(0 <= share < 1 for share in shares)
    results = {result.name: result for result in jobs.results()}
    assert list(results) == ["tp2", "ep2"]
    for result in results.values():
        report = result.report
        assert result.num_equal == result.num_tokens == 8 * 5
        assert result.logit_difference < 1e-4 and result.tokens_per_s > 0
        assert sum(report.moved_per_token.values()) > 0
    tensor = results["tp2"].report
    assert tensor.moved_per_token == pytest.approx(tensor.formula_per_token)
    assert tensor.kv_balance == pytest.approx(4 / 3)  # three KV heads on two ranks
    texts = load_texts()
    bars = bytes_figure(texts, jobs.results())
    assert [trace.name for trace in bars.data][:1] == ["all-reduce"]
    assert bars.data[-1].y[0] == pytest.approx(sum(tensor.formula_per_token.values()))
    balance = balance_figure(texts, jobs.results())
    assert list(balance.data[0].x) == ["TP 2, rank 0", "TP 2, rank 1", "EP 2, rank 0",
                                       "EP 2, rank 1"]  # fmt: skip
    assert max(balance.data[0].y) == pytest.approx(4 / 3)
    version = jobs.status.version
    jobs.start(DevicesPlan(placements=["pp2"], new_tokens=2))
    wait_until(lambda: not jobs.status.running)
    assert [result.name for result in jobs.results()] == ["tp2", "ep2", "pp2"]
    assert jobs.status.version > version


def test_a_job_is_cancelled_and_its_ranks_end(jobs: DeviceJobs) -> None:
    jobs.start(TINY)
    assert jobs.process is not None
    pid = jobs.process.pid
    wait_until(lambda: bool(jobs.status.doing) and bool(ranks_of(pid)))
    ranks = ranks_of(pid)
    assert jobs.cancel() and jobs.status.cancelling
    wait_until(lambda: not jobs.status.running)
    assert jobs.status.state == "cancelled" and not jobs.cancel()
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))


def test_a_killed_job_says_so(jobs: DeviceJobs) -> None:
    jobs.start(TINY)
    assert jobs.process is not None
    os.kill(jobs.process.pid, signal.SIGKILL)
    wait_until(lambda: not jobs.status.running)
    assert jobs.status.state == "failed" and "by signal 9" in jobs.status.error


def test_closing_ends_a_job() -> None:
    jobs = DeviceJobs()
    jobs.start(TINY)
    assert jobs.process is not None
    process = jobs.process
    jobs.close()
    assert not process.alive


def test_plans_that_cannot_be_are_refused() -> None:
    assert decode_plan(encode_line(TINY)) == TINY
    assert TINY.names == ["one", "tp2", "moe_one", "ep2"]
    for wrong, why in (
        (b'{"placements": ["tp9"]}', r"placements = \['tp9'\]: choose one or more of tp2, tp3"),
        (b'{"placements": []}', "choose one or more"),
        (b'{"placements": ["tp2"], "model": "big"}', "model = 'big': choose one of random, def"),
        (b'{"placements": ["tp2"], "new_tokens": 1}', "new_tokens = 1: give 2 to 256"),
        (b'{"placements": ["tp2"], "speed": 1}', "unknown field `speed`"),
        (b"nothing", "the plan is not understood"),
    ):
        with pytest.raises(SettingError, match=why):
            decode_plan(wrong)
