"""One background thread for file transfers; it touches host buffers only, never the KV arena."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one transfer ended: `reason` is empty or names the fault; times in seconds."""

    reason: str = ""
    start_s: float = 0.0
    seconds: float = 0.0
    file_bytes: int = 0  # real bytes on disk (st_blocks * 512) after a write
    checksums: tuple[int, ...] | None = None  # of what will be read back, where a codec is lossy


Run = Callable[[], Outcome]
Then = Callable[[Outcome], None]


class IoThread:
    """Runs transfers first in, first out; `drain` hands their outcomes to the engine's thread."""

    def __init__(self, name: str) -> None:
        self._todo: deque[tuple[Run, Then, int]] = deque()
        self._done: deque[tuple[Then, Outcome]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._num_running = 0
        self._backlog_bytes = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def num_pending(self) -> int:
        """Transfers not yet handed over by `drain`."""
        with self._changed:
            return len(self._todo) + self._num_running + len(self._done)

    @property
    def backlog_bytes(self) -> int:
        """Bytes queued or moving now."""
        with self._changed:
            return self._backlog_bytes

    def submit(self, run: Run, then: Then, num_bytes: int = 0) -> None:
        """Queue `run` for the thread; `then(outcome)` is called by a later `drain`."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the hierarchy is closed: open a new one")
            self._todo.append((run, then, num_bytes))
            self._backlog_bytes += num_bytes
            self._changed.notify_all()

    def drain(self) -> int:
        """Call the continuations of all finished transfers; returns how many."""
        count = 0
        while True:
            with self._changed:
                if not self._done:
                    return count
                then, outcome = self._done.popleft()
            then(outcome)
            count += 1

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Block until nothing is queued or moving (outcomes may still wait for `drain`)."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._todo and not self._num_running, timeout_s
            )

    def close(self) -> None:
        """Finish what is queued, then join the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._todo or self._closing)
                if not self._todo:
                    return
                run, then, num_bytes = self._todo.popleft()
                self._num_running = 1
            try:
                outcome = run()
            except Exception as error:  # a fault of ours is a counted miss too, never a dead thread
                outcome = Outcome(reason=f"internal error: {error!r}")
            with self._changed:
                self._done.append((then, outcome))
                self._num_running = 0
                self._backlog_bytes -= num_bytes
                self._changed.notify_all()
