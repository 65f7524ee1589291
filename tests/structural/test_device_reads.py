"""Sparse reads and split pages off the CPU: on a device of fake tensors, through its buffers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workbench.engine.host_stage import HostStage

pytest.importorskip("triton", reason="Triton has wheels for Linux only")


def test_nothing_mixes_devices_nor_asks_for_a_chosen_page(repo_root: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.structural.fake_gpu"], cwd=repo_root,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == "checked 6 ways to choose and 2 formats"


def test_buffers_take_turns_on_the_way_to_a_device() -> None:
    """`meta` stands for a device that takes bytes and keeps none."""
    stage = HostStage("meta")
    first, second = stage.take(2, 8), stage.take(2, 8)
    assert not np.shares_memory(first, second), "the first may still be on its way"
    assert np.shares_memory(first, stage.take(2, 8))
    sent = stage.send(first)
    assert sent.shape == (2, 8) and sent.device.type == "meta"
    assert stage.num_bytes == 2 * (16 * 5 // 4)
    assert stage.take(4, 8).shape == (4, 8) and stage.num_bytes == 16 * 5 // 4 + 32 * 5 // 4


def test_on_a_cpu_the_buffer_is_the_result() -> None:
    stage = HostStage("cpu")
    filled = stage.take(1, 8)
    filled[:] = 7
    assert stage.send(filled).tolist() == [[7] * 8]
    assert np.shares_memory(filled, stage.take(1, 8)) and stage.num_bytes == 10
