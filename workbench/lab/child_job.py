"""What measuring processes that a dashboard starts have in common: a plan, lines, when to stop.

They end when all is measured, on SIGTERM, and when their standard input closes, also by the death
of who started them.
"""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType

import msgspec

from workbench.clock import Clock, RealClock
from workbench.errors import WorkbenchError
from workbench.lab.job_lines import DoneLine, ErrorLine, encode_line

GRACE_S = 3.0  # a running step may take longer; without a starter nobody waits for it
EXIT_REFUSED, EXIT_CRASHED = 2, 70


class Cancel:
    """Whether to stop, and why."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked = threading.Event()
        self._end_s = float("inf")

    def limit(self, seconds: float) -> None:
        """Stop by itself after so many seconds from now; 0 = never."""
        self._end_s = self._clock.now_s() + seconds if seconds else float("inf")

    def ask(self, *_: int | FrameType | None) -> None:
        """Stop before the next step of a window."""
        self._asked.set()

    def __call__(self) -> bool:
        """Whether to stop now."""
        return bool(self.why)

    @property
    def why(self) -> str:
        """cancelled, time, or empty while it goes on."""
        if self._asked.is_set():
            return "cancelled"
        return "time" if self._clock.now_s() >= self._end_s else ""


def end_with_starter(cancel: Cancel) -> None:
    """Stop on SIGTERM, and when the starter's end of standard input closes."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        cancel.ask()
        threading.Event().wait(GRACE_S)
        os._exit(0)

    signal.signal(signal.SIGTERM, cancel.ask)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's to handle
    threading.Thread(target=watch, name="starter watch", daemon=True).start()


def read_line(max_bytes: int) -> bytes:
    """The first line of standard input, at most one byte more than `max_bytes`."""
    data = b""
    while b"\n" not in data and len(data) <= max_bytes:
        piece = os.read(0, 65536)
        if not piece:
            break
        data += piece
    return data.split(b"\n")[0] if b"\n" in data else data


def write(line: msgspec.Struct) -> None:
    """Send a line; a starter that is gone is no fault."""
    try:
        os.write(1, encode_line(line))
    except BrokenPipeError:
        os._exit(0)


def serve(work: Callable[[bytes, Cancel], None], max_plan_bytes: int) -> int:
    """Do the work that the plan on standard input describes; returns the exit code.

    `work` gets the plan's line, and asks between its steps whether to stop. What it raises becomes
    the last line: one sentence.
    """
    cancel = Cancel(RealClock())
    try:
        work(read_line(max_plan_bytes), cancel)
    except WorkbenchError as error:
        write(ErrorLine(message=" ".join(str(error).split())))
        return EXIT_REFUSED
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        write(ErrorLine(message=text[:1000]))
        return EXIT_CRASHED
    write(DoneLine(why=cancel.why or "done"))
    return 0
