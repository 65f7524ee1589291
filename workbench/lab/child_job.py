"""What measuring processes that a dashboard starts have in common: a plan, and when to stop."""

import os
import signal
import threading
from types import FrameType

from workbench.clock import Clock

GRACE_S = 3.0  # a running step may take longer; without a starter nobody waits for it


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
