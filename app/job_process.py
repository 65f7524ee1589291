"""A measuring process of the dashboard: started with a plan on its input, followed by its lines."""

import contextlib
import os
import subprocess
import sys
from typing import IO


def job_threads(num_cores: int) -> int:
    """Threads of a job beside an engine that has all cores but one: they must not wait for it."""
    return max(1, num_cores // 4)


def launch(module: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start `python -m module` with few threads; what it says besides lines goes to `log`."""
    # The pipe on its standard input tells the job that we are gone; a session of its own keeps
    # Ctrl-C in the terminal ours.
    threads = str(job_threads(os.cpu_count() or 1))
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={"OMP_NUM_THREADS": threads} | dict(os.environ),
        start_new_session=True,
    )


def send(process: "subprocess.Popen[bytes]", plan: bytes) -> None:
    """Give a process its plan."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: the follower tells why
        process.stdin.write(plan)
        process.stdin.flush()


def close_input(process: "subprocess.Popen[bytes]") -> None:
    """Tell a process that nobody wants its lines any more."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended before it had read its plan
        process.stdin.close()


def death(code: int, log: IO[bytes]) -> str:
    """One sentence about a process that ended without a last line."""
    log.seek(0)
    lines = log.read()[-4000:].decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:300]}" if lines else ""
    by = f"by signal {-code}" if code < 0 else f"with code {code}"
    return f"its process ended {by}{last}"
