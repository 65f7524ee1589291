"""Both documented paths in an empty environment, up to a dashboard that answers."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def clone(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("clone")
    prefix = f"--prefix={target}/"
    subprocess.run(["git", "checkout-index", "--all", prefix], cwd=repo_root, check=True)
    return target


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own, ended as Ctrl-C does."""
    process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, timeout_s: int) -> None:
    pause = threading.Event()
    for _ in range(timeout_s * 2):
        assert process.poll() is None, f"ended with {process.returncode}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            pause.wait(0.5)
    pytest.fail(f"no answer on port {port} within {timeout_s} s")


def test_make_app_from_nothing(clone: Path, port: int) -> None:
    command = ["make", "app", f"PORT={port}", f"PYTHON={sys.executable}", "VENV=.venv-make"]
    with started(command, clone) as process:
        wait_until_healthy(process, port, 900)
    with started(command, clone) as process:
        wait_until_healthy(process, port, 20)


def test_the_manual_path_of_the_readme(clone: Path, port: int) -> None:
    readme = (clone / "README.md").read_text()
    block = next(part for part in re.findall(r"```\n(.*?)```", readme, re.S) if "pip" in part)
    *install, start = block.strip().splitlines()
    assert start == "streamlit run app"
    subprocess.run([sys.executable, "-m", "venv", ".venv-manual"], cwd=clone, check=True)
    for line in install:
        subprocess.run(
            ["bash", "-c", f". .venv-manual/bin/activate && {line}"], cwd=clone, check=True
        )
    run = f". .venv-manual/bin/activate && exec {start} --server.port {port} --server.headless true"
    with started(["bash", "-c", run], clone) as process:
        wait_until_healthy(process, port, 60)
