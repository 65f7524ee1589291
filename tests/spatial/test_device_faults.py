"""Ranks that die, stop, fail or lag: one clear sentence, no process left, no order lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from workbench.model.arch import ModelArch
from workbench.model.naive import naive_greedy
from workbench.spatial.devices.group import DeviceGroup, GroupOptions
from workbench.spatial.devices.placement import experts, pipeline, tensor_parallel
from workbench.spatial.devices.sources import ModelSource, one_process
from workbench.spatial.devices.workers import DeviceError

ARCH = ModelArch("random", 4, 96, 6, 3, 16, 128, 256)
DENSE, MOE = ModelSource(arch=ARCH), ModelSource(arch=ARCH, num_experts=4)
PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], [30, 31], [200]]


def gone(process_ids: list[int], within_s: float = 5.0) -> bool:
    """Whether all of them have ended; zombies count as alive."""
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) for pid in process_ids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("when", ["idle", "in a step"])
def test_a_killed_rank_is_named_and_none_is_left(when: str) -> None:
    delays = (0.0, 0.0 if when == "idle" else 30.0)
    group = DeviceGroup(DENSE, tensor_parallel(ARCH, 2), GroupOptions(delays_s=delays))
    ids, folder = group.process_ids, group._workers.folder
    killer = None
    if when == "idle":
        os.kill(ids[1], signal.SIGKILL)
    else:
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {ids[1]}"])
    begun = time.monotonic()
    with pytest.raises(DeviceError, match=rf"rank 1 \(process {ids[1]}\) was killed by SIGKILL"):
        group.step({0: [1, 2, 3]})
    assert time.monotonic() - begun < 5
    assert gone(ids) and not folder.exists()
    if killer is not None:
        killer.wait()
    with pytest.raises(DeviceError, match="the ranks have ended"):
        group.step({0: [1]})
    group.close()


def test_a_stopped_rank_runs_into_the_time_limit() -> None:
    group = DeviceGroup(DENSE, pipeline(ARCH, 2), GroupOptions(step_s=1.0))
    ids = group.process_ids
    os.kill(ids[0], signal.SIGSTOP)
    with pytest.raises(DeviceError, match=r"rank 0 .* stopped,.* did not answer within 1 s"):
        group.step({0: [1, 2, 3]})
    assert gone(ids)


def test_a_rank_that_fails_tells_why() -> None:
    source = ModelSource(path="/nowhere/model.gguf")
    with pytest.raises(Exception, match="nowhere"):
        DeviceGroup(source, tensor_parallel(ARCH, 2))
    before = set(psutil.Process().children())
    with pytest.raises(DeviceError, match="k_format = 'fp3' is unknown"):
        DeviceGroup(DENSE, tensor_parallel(ARCH, 2), GroupOptions(kv_format="fp3"))
    assert set(psutil.Process().children()) == before


PARENT = """
import sys, time
from workbench.model.arch import ModelArch
from workbench.spatial.devices.group import DeviceGroup, GroupOptions
from workbench.spatial.devices.placement import tensor_parallel
from workbench.spatial.devices.sources import ModelSource
arch = ModelArch("random", 4, 96, 6, 3, 16, 128, 256)
options = GroupOptions(delays_s=(0, 60))
group = DeviceGroup(ModelSource(arch=arch), tensor_parallel(arch, 2), options)
print(group._workers.folder, *group.process_ids, flush=True)
group.step({0: [1, 2, 3]})
"""


def test_ranks_end_with_a_killed_parent(repo_root: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=repo_root, text=True
    )
    assert parent.stdout is not None
    folder, *words = parent.stdout.readline().split()
    ids = [int(word) for word in words]
    assert len(ids) == 2 and Path(folder).is_dir()
    parent.kill()
    parent.wait()
    assert gone(ids) and not Path(folder).exists()


@pytest.mark.parametrize(("kind", "slow"), [("tensor", 1), ("pipeline", 0), ("experts", 1)])
def test_a_straggler_delays_and_changes_nothing(kind: str, slow: int) -> None:
    source = MOE if kind == "experts" else DENSE
    placement = {
        "tensor": lambda: tensor_parallel(ARCH, 2),
        "pipeline": lambda: pipeline(ARCH, 2),
        "experts": lambda: experts(MOE.moe, 2),  # type: ignore[arg-type]
    }[kind]()
    delays = (0.03, 0.0) if slow == 0 else (0.0, 0.03)
    options = GroupOptions(micro_batches=4, delays_s=delays)
    whole = one_process(source)
    with DeviceGroup(source, placement, options) as group:
        texts = group.generate(PROMPTS, 4)
        report = group.report()
        ids = group.process_ids
    assert texts == [naive_greedy(whole, prompt, 4)[0] for prompt in PROMPTS]
    assert report.delayed and report.wall_s >= 4 * 0.03
    if kind != "pipeline":  # the others wait for it in their collectives
        assert report.ranks[1 - slow].comm_s > report.ranks[slow].comm_s
    assert gone(ids)


def test_a_rank_begins_before_the_one_before_it_has_ended() -> None:
    """By micro-batches. Rank 0 rests before each, so that a busy machine changes no order."""
    options = GroupOptions(micro_batches=4, delays_s=(0.2, 0.0))
    with DeviceGroup(DENSE, pipeline(ARCH, 2), options) as group:
        group.step({0: [1] * 20})  # a single piece cannot be split
        report = group.report(reset=True)
        assert [len(rank.spans) for rank in report.ranks] == [1, 1]
        assert report.overlap == 0.0
        group.step({number: [1] * 20 for number in range(1, 5)})
        first, second = (rank.spans for rank in group.report().ranks)
    assert len(first) == len(second) == 4
    assert second[0][1] < first[-1][0]
    assert all(begun[1] <= after[0] for begun, after in zip(first, second, strict=True))


def test_an_interrupted_step_ends_the_ranks() -> None:
    """Else the next question would get this one's reply."""
    group = DeviceGroup(DENSE, tensor_parallel(ARCH, 2), GroupOptions(delays_s=(0, 60)))
    ids = group.process_ids

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            group.step({0: [1, 2, 3]})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert gone(ids)
