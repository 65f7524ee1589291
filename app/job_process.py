"""A measuring process of the dashboard: started with a plan, followed by its lines to its end."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from workbench.lab.job_lines import DoneLine, ErrorLine, encode_line

CLOSE_S = 5.0


def job_threads(num_cores: int) -> int:
    """Threads of a job beside an engine that has all cores but one: they must not wait for it."""
    return max(1, num_cores // 4)


class JobProcess:
    """`python -m module` with few threads; a thread of its own takes what it says.

    `decode` reads a line of at most `line_bytes` bytes (msgspec.DecodeError for none), `take` gets
    all but the last one, and `ended` at the end the state (done, time, cancelled or failed) and,
    if it failed, one sentence.
    """

    def __init__(
        self,
        module: str,
        decode: Callable[[bytes], Any],
        line_bytes: int,
        take: Callable[[Any], None],
        ended: Callable[[str, str], None],
    ) -> None:
        """Start the process; it waits for its plan."""
        self.cancelling = False
        self._decode, self._line_bytes, self._take, self._ended = decode, line_bytes, take, ended
        self._log = tempfile.TemporaryFile()  # what it says besides lines; closed at its end
        # The pipe on its standard input tells the job that we are gone; a session of its own keeps
        # Ctrl-C in the terminal ours.
        threads = str(job_threads(os.cpu_count() or 1))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={"OMP_NUM_THREADS": threads} | dict(os.environ),
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._follow, name=module, daemon=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def begin(self, plan: msgspec.Struct) -> None:
        """Give it its plan, and follow it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the follower tells why
            self._process.stdin.write(encode_line(plan))
            self._process.stdin.flush()
        self._thread.start()

    def cancel(self) -> None:
        """Ask it to stop after its step."""
        self.cancelling = True
        self._process.terminate()

    def close(self) -> None:
        """End it, by force if it does not end by itself."""
        self._close_input()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _follow(self) -> None:
        """Take its lines until its end."""
        assert self._process.stdout is not None
        state = error = ""
        while line := self._process.stdout.readline(self._line_bytes):
            try:
                said = self._decode(line)
            except msgspec.DecodeError as fault:
                error = error or f"its process wrote a line that is none ({fault})"
                continue
            if isinstance(said, ErrorLine):
                error = said.message
            elif isinstance(said, DoneLine):
                state = said.why
            else:
                self._take(said)
        code = self._process.wait()
        self._close_input()
        if not error and not state:
            if code == -signal.SIGTERM and self.cancelling:
                state = "cancelled"  # before it could listen: it was still being started
            else:
                error = self._death(code)
        self._log.close()
        self._ended("failed" if error else state, error)

    def _close_input(self) -> None:
        """Tell it that nobody wants its lines any more."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before it had read its plan
            self._process.stdin.close()

    def _death(self, code: int) -> str:
        """One sentence about a process that ended without a last line."""
        self._log.seek(0)
        lines = self._log.read()[-4000:].decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        by = f"by signal {-code}" if code < 0 else f"with code {code}"
        return f"its process ended {by}{last}"
