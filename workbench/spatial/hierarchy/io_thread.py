"""One background thread for a tier's transfers; it touches host buffers only, never the KV arena.

Loads go before stores: gets and probes are taken first, unless an operation on their own key or a
call waits before them (LMCache's disk queue: prefetch 0, delete 1, put 2). What is queued together
is handed over together: gets that follow each other, or removals and puts, whose removals go first
so that the medium has room.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.spatial.hierarchy.medium import PageRecord

MOST_AT_ONCE = 32  # operations of a batch: Mooncake's io_uring depth
CALL, GET, PUT, REMOVE, PROBE = "call", "get", "put", "remove", "probe"
LOAD_CALL = "load call"
_TOGETHER = {
    GET: (GET,),
    PROBE: (PROBE,),
    PUT: (PUT, REMOVE),
    REMOVE: (PUT, REMOVE),
    CALL: (),
    LOAD_CALL: (),
}


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
    """Runs loads, then all else, each in its order; `drain` hands outcomes to the engine's thread.

    `perform(ops)` runs a batch of one kind, or of removals and puts, and never raises. The thread
    starts with the first operation.
    """

    def __init__(self, name: str, perform: Callable[[list[Op]], list[Outcome]]) -> None:
        self._perform = perform
        self._loads: deque[tuple[Op, Then, int]] = deque()
        self._todo: deque[tuple[Op, Then, int]] = deque()  # all that may not go first
        self._keys_todo: Counter[bytes] = Counter()  # of those; b"" is that of calls
        self._done: deque[tuple[Then, Outcome]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._num_running = 0
        self._backlog_bytes = 0
        self._store_bytes = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def num_pending(self) -> int:
        """Transfers not yet handed over by `drain`."""
        with self._changed:
            return len(self._loads) + len(self._todo) + self._num_running + len(self._done)

    @property
    def backlog_bytes(self) -> int:
        """Bytes queued or moving now."""
        with self._changed:
            return self._backlog_bytes

    @property
    def store_bytes(self) -> int:
        """Bytes of puts queued or moving now."""
        with self._changed:
            return self._store_bytes

    def submit(
        self, run: Callable[[], Outcome], then: Then, num_bytes: int = 0, *, load: bool = False
    ) -> None:
        """Queue a call by itself; `then(outcome)` is called by a later `drain`.

        A `load` goes before stores: what it reads has to lie there already.
        """
        self.queue(Op(LOAD_CALL if load else CALL, b"", run), then, num_bytes)

    def queue(self, op: Op, then: Then, num_bytes: int = 0) -> None:
        """Queue an operation, which may run together with its neighbours."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the hierarchy is closed: open a new one")
            if self._thread.ident is None:
                self._thread.start()
            waits = self._keys_todo[op.key] or self._keys_todo[b""]
            first = op.kind == LOAD_CALL or (op.kind in (GET, PROBE) and not waits)
            (self._loads if first else self._todo).append((op, then, num_bytes))
            if not first:
                self._keys_todo[op.key] += 1
            self._backlog_bytes += num_bytes
            self._store_bytes += num_bytes if op.kind == PUT else 0
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
                lambda: not (self._loads or self._todo or self._num_running), timeout_s
            )

    def wait_done(self, timeout_s: float) -> None:
        """Block until an outcome waits for `drain`, nothing is to come, or the time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._done or not (self._loads or self._todo or self._num_running),
                timeout_s,
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
                self._changed.wait_for(lambda: self._loads or self._todo or self._closing)
                if not (self._loads or self._todo):
                    return
                batch = self._take(self._loads or self._todo)
                self._num_running = len(batch)
            outcomes = self._run([op for op, _, _ in batch])
            with self._changed:
                for (op, then, num_bytes), outcome in zip(batch, outcomes, strict=True):
                    self._done.append((then, outcome))
                    self._backlog_bytes -= num_bytes
                    self._store_bytes -= num_bytes if op.kind == PUT else 0
                self._num_running = 0
                self._changed.notify_all()

    def _take(self, queue: deque[tuple[Op, Then, int]]) -> list[tuple[Op, Then, int]]:
        """The operations at the head of a queue that may run together."""
        batch = [queue.popleft()]
        together, keys = _TOGETHER[batch[0][0].kind], {batch[0][0].key}
        while queue and len(batch) < MOST_AT_ONCE:
            op = queue[0][0]
            if op.kind not in together or (op.key in keys and op.kind != GET):
                break
            keys.add(op.key)
            batch.append(queue.popleft())
        if queue is self._todo:
            self._keys_todo.subtract(op.key for op, _, _ in batch)
            self._keys_todo += Counter()  # without those at zero
        return batch

    def _run(self, ops: list[Op]) -> list[Outcome]:
        try:
            return [ops[0].item()] if ops[0].kind in (CALL, LOAD_CALL) else self._perform(ops)
        except Exception as error:  # a fault of ours is a counted miss too, never a dead thread
            return [Outcome(reason=f"internal error: {error!r}")] * len(ops)


def nothing(outcome: Outcome) -> None:
    """Continuation of transfers that nobody waits for."""
