"""One engine over the client's life: its process, its answers, its death and its successor."""

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

import msgspec
import numpy as np

from workbench.config import (
    EngineConfig,
    all_settings,
    difference,
    get_setting,
    replace_settings,
)
from workbench.engine.process import protocol
from workbench.engine.process.connection import Connection
from workbench.engine.process.endpoints import LaunchOptions
from workbench.engine.process.journal import Journal
from workbench.errors import EngineDied, WorkbenchError
from workbench.events import EVENTS_PER_PROCESS
from workbench.registry import Name
from workbench.snapshot import Snapshot, decode_frame, decode_token_blocks, encode_frame

T = TypeVar("T")
ANSWER_TIMEOUT_S = 30.0
LOADING_TIMEOUT_S = 1800.0  # a first start downloads the model
_CLOSE_TIMEOUT_S = 5.0


class EngineLink:
    """A connection that can be replaced, the journal that outlives it, and who listens.

    `state` is `loading`, `running` or `dead`; `death_reason` is one sentence once it is dead.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        random_layers: int = 0,
        random_seed: int = 0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        kv_events: str = "",
        kv_events_replay: str = "",
    ) -> None:
        self.config = config
        self.journal = Journal()
        self._random = (random_layers, random_seed)
        self._kv_events = (kv_events, kv_events_replay)
        self._timeout_s = answer_timeout_s
        self._lock = threading.RLock()  # journal, frame, callbacks, connection
        self._restarting = threading.Lock()
        self._frame = b""
        self._callbacks: list[Callable[[bytes], None]] = []
        self._death_callbacks: list[Callable[[str], None]] = []
        self._reason = ""
        self._loading = True
        self.policies: dict[str, str] = {}  # texts of the user's own files that were run
        self.own_names: dict[str, list[Name]] = {}  # what each has registered
        self._paused = False
        self._speed = 1.0
        self._num_launches = 0
        self._ready = threading.Event()
        with self._lock:
            self._connection = self._connect()
        atexit.register(self.close)

    @property
    def state(self) -> str:
        """`loading`, `running` or `dead`."""
        if self._reason:
            return "dead"
        return "loading" if self._loading else "running"

    @property
    def death_reason(self) -> str:
        """Why the process ended, in one sentence; empty while it lives."""
        return self._reason

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._connection.pid

    def wait_ready(self, timeout_s: float = LOADING_TIMEOUT_S) -> None:
        """Return when the model is loaded; raises EngineDied or WorkbenchError after the time."""
        if not self._ready.wait(timeout_s):
            raise WorkbenchError(
                f"the engine was not ready after {timeout_s:g} s: see {self._connection.log_file}"
            )
        if self._reason:
            raise EngineDied(self._reason)

    @property
    def last_frame(self) -> bytes:
        """The newest frame that has arrived, without asking for one; empty before the first."""
        return self._frame

    def subscribe(self, callback: Callable[[bytes], None]) -> Callable[[], None]:
        """Call back with each frame, from the client's own thread; returns the way to stop it.

        Frames are made only while somebody subscribes.
        """
        with self._lock:
            self._callbacks.append(callback)
            self._connection.want_frames(True)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)
                self._connection.want_frames(bool(self._callbacks) or self._loading)

        return unsubscribe

    def on_death(self, callback: Callable[[str], None]) -> None:
        """Call back with the reason when the process ends unasked."""
        with self._lock:
            self._death_callbacks.append(callback)

    def restart(self, wait: bool = False, *, resubmit: bool = True) -> list[str]:
        """Start a new process; every unfinished stream goes on where it was.

        Returns the ids of the requests submitted again. A living process is ended first. With
        `resubmit` off they are given up, and with them policies of the user's own: the way out
        when one of them ends the engine each time.
        """
        with self._restarting:
            self._connection.close(_CLOSE_TIMEOUT_S)
            with self._lock:
                if not resubmit:
                    self.journal.give_up()
                    self._forget_own()
                waiting = self.journal.unfinished()
                workloads = self.journal.resumed_workloads()
                self._reason, self._loading = "", True
                self._ready.clear()
                self._connection = self._connect()
            for entry in waiting:
                self._send(protocol.Submit(entry.resumed_spec()))
            for workload in workloads:
                self._send(workload)
        if wait:
            self.wait_ready()
        return [entry.request_id for entry in waiting]

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._connection.close(_CLOSE_TIMEOUT_S)
        with self._lock:
            self._reason = self._reason or "the engine was closed"
        self._ready.set()

    def _forget_own(self) -> None:
        """No file of the user's own is run again, and no setting names what one has registered."""
        self.policies.clear()
        self.own_names.clear()
        named = {path: item for path, item in all_settings().items() if item.metadata["own"]}
        foreign = {
            path: item.default
            for path, item in named.items()
            if get_setting(self.config, path) not in item.metadata["choices"]
        }
        self.config = replace_settings(self.config, foreign)

    def _connect(self) -> Connection:
        options = LaunchOptions(
            changes=difference(self.config, EngineConfig()),
            random_layers=self._random[0],
            random_seed=self._random[1],
            paused=self._paused,
            speed=self._speed,
            first_request_number=self.journal.next_request_number(),
            policies=self.policies,
            kv_events=self._kv_events[0],
            kv_events_replay=self._kv_events[1],
            last_event_seq=self._num_launches * EVENTS_PER_PROCESS,
        )
        self._num_launches += 1
        return Connection(
            options,
            on_frame=self._on_frame,
            on_published=self._on_published,
            on_death=self._on_death,
            want_frames=True,
        )

    def _send(self, body: protocol.Body) -> "Future[protocol.Reply]":
        if self._reason:
            raise EngineDied(f"{self._reason}: press Restart, streams go on where they were")
        return self._connection.send(body)

    def _call(self, body: protocol.Body, kind: type[T], timeout_s: float | None = None) -> T:
        future = self._send(body)
        if timeout_s is None:
            timeout_s = LOADING_TIMEOUT_S if self._loading else self._timeout_s
        try:
            reply = future.result(timeout_s)
        except FutureTimeout:
            raise WorkbenchError(
                f"the engine did not answer {type(body).__name__} within {timeout_s:g} s: it is "
                "busy or stuck; try again, or restart it"
            ) from None
        if not isinstance(body, protocol.WHILE_LOADING):
            self._loaded()  # it waited for the engine
        if reply.error:
            raise protocol.error_from(reply.error_kind, reply.error)
        return msgspec.msgpack.decode(reply.value, type=kind)

    def _on_frame(self, frame: bytes, is_loading: bool) -> None:
        with self._lock:
            self._frame = frame
            callbacks = list(self._callbacks)
        if not is_loading:
            self._loaded()
        for callback in callbacks:
            callback(frame)

    def _loaded(self) -> None:
        with self._lock:
            if self._loading:
                self._loading = False
                self._connection.want_frames(bool(self._callbacks))
        self._ready.set()

    def _on_published(self, message: protocol.Published) -> None:
        with self._lock:
            self.journal.record(message)

    def _on_death(self, reason: str) -> None:
        with self._lock:
            self._reason = reason
            callbacks = list(self._death_callbacks)
            self._frame = _mark_dead(self._frame, reason)
        self._ready.set()
        for callback in callbacks:
            callback(reason)


def _mark_dead(frame: bytes, reason: str) -> bytes:
    """The last frame again, or an empty one, that says why no other follows."""
    if frame:
        snapshot, cells, tables = decode_frame(frame)
        blocks = decode_token_blocks(frame)
    else:
        snapshot = Snapshot(seq=0, step=0, time_s=0.0, state="dead")
        cells, tables, blocks = [], np.zeros(0, np.int32), None
    dead = msgspec.structs.replace(snapshot, state="dead", state_detail=reason)
    return encode_frame(dead, cells, tables, blocks)
