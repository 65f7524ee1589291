"""One background thread for a tier's transfers; it touches host buffers only, never the KV arena.

What is queued together is handed over together: gets that follow each other, or removals and puts,
whose removals go first so that the medium has room. Nothing overtakes an operation on its own key.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.spatial.hierarchy.medium import PageRecord

MOST_AT_ONCE = 32  # operations of a batch: Mooncake's io_uring depth
CALL, GET, PUT, REMOVE, PROBE = "call", "get", "put", "remove", "probe"
_TOGETHER = {GET: (GET,), PROBE: (PROBE,), PUT: (PUT, REMOVE), REMOVE: (PUT, REMOVE), CALL: ()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one transfer ended: `reason` is empty or names the fault; times in seconds.

    `batch`: bytes and seconds of all that moved together, told once, if nothing of it failed.
    `record`: of the page as it lies on the medium, after a put, and where a probe found it.
    """

    reason: str = ""
    start_s: float = 0.0
    seconds: float = 0.0
    real_bytes: int = 0
    record: PageRecord | None = None
    batch: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on a medium: its kind, the encoded key that orders it, and what it needs."""

    kind: str
    key: bytes
    item: Any


Then = Callable[[Outcome], None]


class IoThread:
    """Runs operations first in, first out; `drain` hands their outcomes to the engine's thread.

    `perform(ops)` runs a batch of one kind, or of removals and puts, and never raises. The thread
    starts with the first operation.
    """

    def __init__(self, name: str, perform: Callable[[list[Op]], list[Outcome]]) -> None:
        self._perform = perform
        self._todo: deque[tuple[Op, Then, int]] = deque()
        self._done: deque[tuple[Then, Outcome]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._num_running = 0
        self._backlog_bytes = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
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

    def submit(self, run: Callable[[], Outcome], then: Then, num_bytes: int = 0) -> None:
        """Queue a call by itself; `then(outcome)` is called by a later `drain`."""
        self.queue(Op(CALL, b"", run), then, num_bytes)

    def queue(self, op: Op, then: Then, num_bytes: int = 0) -> None:
        """Queue an operation, which may run together with its neighbours."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the hierarchy is closed: open a new one")
            if self._thread.ident is None:
                self._thread.start()
            self._todo.append((op, then, num_bytes))
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

    def wait_done(self, timeout_s: float) -> None:
        """Block until an outcome waits for `drain`, nothing is to come, or the time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._done or not (self._todo or self._num_running), timeout_s
            )

    def close(self) -> None:
        """Finish what is queued, then join the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._todo or self._closing)
                if not self._todo:
                    return
                batch = self._take()
                self._num_running = len(batch)
            outcomes = self._run([op for op, _, _ in batch])
            with self._changed:
                for (_, then, num_bytes), outcome in zip(batch, outcomes, strict=True):
                    self._done.append((then, outcome))
                    self._backlog_bytes -= num_bytes
                self._num_running = 0
                self._changed.notify_all()

    def _take(self) -> list[tuple[Op, Then, int]]:
        """The operations at the head that may run together."""
        batch = [self._todo.popleft()]
        together, keys = _TOGETHER[batch[0][0].kind], {batch[0][0].key}
        while self._todo and len(batch) < MOST_AT_ONCE:
            op = self._todo[0][0]
            if op.kind not in together or (op.key in keys and op.kind != GET):
                break
            keys.add(op.key)
            batch.append(self._todo.popleft())
        return batch

    def _run(self, ops: list[Op]) -> list[Outcome]:
        try:
            return [ops[0].item()] if ops[0].kind == CALL else self._perform(ops)
        except Exception as error:  # a fault of ours is a counted miss too, never a dead thread
            return [Outcome(reason=f"internal error: {error!r}")] * len(ops)


def nothing(outcome: Outcome) -> None:
    """Continuation of transfers that nobody waits for."""
