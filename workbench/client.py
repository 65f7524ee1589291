"""Client of an engine process: commands, frames, tokens, and going on after its death.

Thread-safe. Never imports torch. One background thread owns all sockets; callers wait for answers.
"""

import atexit
import dataclasses
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import msgspec

from workbench.config import EngineConfig, difference, replace_settings
from workbench.engine import protocol
from workbench.engine.connection import Connection
from workbench.engine.journal import Entry, Journal
from workbench.engine.protocol import LaunchOptions
from workbench.errors import EngineDied, RequestError, WorkbenchError
from workbench.events import Event
from workbench.lab.prompts_file import read_prompts
from workbench.lab.workloads import make_workload
from workbench.request import RequestSpec
from workbench.snapshot import (
    ApplyReport,
    BlockView,
    IntegrityView,
    Snapshot,
    decode_frame,
    encode_frame,
)

T = TypeVar("T")
ANSWER_TIMEOUT_S = 30.0
LOADING_TIMEOUT_S = 1800.0  # a first start downloads the model
_CLOSE_TIMEOUT_S = 5.0


class LoadedLines(list[str]):
    """Ids of the requests made from a file's lines, and `problems`: a sentence a bad line."""

    def __init__(self, request_ids: Iterable[str], problems: list[str]) -> None:
        super().__init__(request_ids)
        self.problems = problems


class EngineClient:
    """One engine process and everything that a viewer or a script asks of it.

    `state` is `loading`, `running` or `dead`; `death_reason` is one sentence once it is dead.
    Commands sent while the model loads wait for it. Every call raises EngineDied after the
    process has ended, except `snapshot`, `latest_frame` and `outputs`, which show what was last.
    """

    def __init__(
        self, config: EngineConfig, *, random_layers: int = 0, random_seed: int = 0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.config = config
        self.journal = Journal()
        self._random = (random_layers, random_seed)
        self._timeout_s = answer_timeout_s
        self._lock = threading.RLock()  # journal, frame, callbacks, connection
        self._restarting = threading.Lock()
        self._frame = b""
        self._callbacks: list[Callable[[bytes], None]] = []
        self._death_callbacks: list[Callable[[str], None]] = []
        self._reason = ""
        self._loading = True
        self._paused = False
        self._speed = 1.0
        self._ready = threading.Event()
        with self._lock:
            self._connection = self._connect()
        atexit.register(self.close)

    @classmethod
    def start(
        cls, config: EngineConfig | None = None, *, wait: bool = False, random_layers: int = 0,
        random_seed: int = 0, answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> "EngineClient":
        """Start an engine process; with `wait`, return when its model is loaded.

        `random_layers` > 0 runs a small random model instead of loading one. Raises EngineDied
        when it cannot be loaded (only with `wait`).
        """
        client = cls(
            config or EngineConfig(), random_layers=random_layers, random_seed=random_seed,
            answer_timeout_s=answer_timeout_s,
        )
        if wait:
            client.wait_ready()
        return client

    # State

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

    # Requests

    def submit(self, spec: RequestSpec) -> str:
        """Add a request; returns its id. Raises RequestError with one sentence."""
        request_id = self._call(protocol.Submit(spec), str)
        with self._lock:  # the answer may overtake the announcement
            if request_id not in self.journal.entries:
                self.journal.record(protocol.Announcement(request_id, spec))
        return request_id

    def abort(self, request_id: str) -> bool:
        """Stop a request; False when there is none of that name."""
        return self._call(protocol.Abort(request_id), bool)

    def clear_requests(self) -> int:
        """Stop all workloads and requests; returns how many requests were stopped."""
        return self._call(protocol.ClearRequests(), int)

    def start_workload(self, name: str, **options: Any) -> list[str]:
        """Start a preset of `workbench.lab.workloads`; returns the ids submitted at once."""
        return self.run_workload(make_workload(name, **options))

    def run_workload(self, workload: protocol.Workload) -> list[str]:
        """Start a workload; returns the ids submitted at once."""
        return self._call(protocol.StartWorkload(workload), list[str])

    def start_workload_soon(self, name: str, **options: Any) -> None:
        """Start a preset as soon as the model is loaded, without waiting for it."""
        self._send(protocol.StartWorkload(make_workload(name, **options)))

    def load_jsonl(self, lines: Iterable[str] | bytes) -> LoadedLines:
        """Submit one request a line; a bad line becomes a sentence in `problems`.

        Raises RequestError when the file is too large or holds no usable line.
        """
        specs, problems = read_prompts(lines)
        ids = []
        for number, spec in specs:
            try:
                ids.append(self.submit(spec))
            except RequestError as error:
                problems.append(f"line {number}: {error}")
        if not ids:
            empty = "the file is empty: give one request a line"
            raise RequestError(problems[0] if problems else empty)
        return LoadedLines(ids, problems)

    def outputs(self, request_id: str) -> Entry:
        """Text, tokens and status of a request so far; raises RequestError for an unknown one."""
        with self._lock:
            entry = self.journal.entries.get(request_id)
            if entry is None:
                raise RequestError(f"there is no request {request_id!r}: it may be too old")
            return dataclasses.replace(entry, token_ids=list(entry.token_ids))

    # Settings and time

    def apply(self, changes: dict[str, Any]) -> ApplyReport:
        """Change settings; raises SettingError and changes nothing when one is not allowed."""
        restart = LOADING_TIMEOUT_S if any(p.startswith("model.") for p in changes) else None
        report = self._call(protocol.Apply(changes), ApplyReport, restart)
        with self._lock:
            self.config = replace_settings(self.config, report.changes)
        return report

    def preview(self, changes: dict[str, Any]) -> ApplyReport:
        """What `apply` would do."""
        return self._call(protocol.Preview(changes), ApplyReport)

    def play(self) -> None:
        """Run on."""
        self._call(protocol.Play(), type(None))
        self._paused = False

    def pause(self) -> None:
        """Stop after the running step."""
        self._call(protocol.Pause(), type(None))
        self._paused = True

    def step(self) -> bool:
        """Pause and run one step; whether there was work."""
        worked = self._call(protocol.Step(), bool)
        self._paused = True
        return worked

    def set_speed(self, speed: float) -> None:
        """1 = full speed, 0.1 = each step takes ten times as long."""
        self._call(protocol.SetSpeed(speed), type(None))
        self._speed = speed

    # Views

    def snapshot(self) -> Snapshot:
        """What the engine shows now; after its death the last frame's, marked dead."""
        try:
            return self._call(protocol.GetSnapshot(), Snapshot)
        except EngineDied:
            frame = self.latest_frame()
            if not frame:
                raise
            return decode_frame(frame)[0]

    def latest_frame(self) -> bytes:
        """The newest frame; empty when none was ever seen."""
        with self._lock:
            watched = bool(self._callbacks) or self.state != "running"
            frame = self._frame
        if not watched or not frame:
            try:
                frame = self._call(protocol.GetFrame(), bytes)
            except WorkbenchError:
                return self._frame
            with self._lock:
                self._frame = frame
        return frame

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

    def inspect(self, tier: str, cell: int) -> BlockView:
        """Everything about one block."""
        return self._call(protocol.Inspect(tier, cell), BlockView)

    def events_since(self, seq: int) -> list[Event]:
        """Events after `seq`, oldest first."""
        return self._call(protocol.EventsSince(seq), list[Event])

    def start_shadow(self, request_id: str) -> None:
        """Also compute one running request in full precision."""
        self._call(protocol.StartShadow(request_id), Any)

    def stop_shadow(self) -> None:
        """End the shadow computation."""
        self._call(protocol.StopShadow(), Any)

    def check(self) -> IntegrityView:
        """Check the invariants now."""
        return self._call(protocol.Check(), IntegrityView)

    # Life

    def restart(self, wait: bool = False) -> list[str]:
        """Start a new process; every unfinished stream goes on where it was.

        Returns the ids of the requests submitted again. A living process is ended first.
        """
        with self._restarting:
            self._connection.close(_CLOSE_TIMEOUT_S)
            with self._lock:
                waiting = self.journal.unfinished()
                workloads = list(self.journal.workloads.values())
                self._reason, self._loading = "", True
                self._ready.clear()
                self._connection = self._connect()
            for entry in waiting:
                self._send(protocol.Submit(entry.resumed_spec()))
            for running in workloads:
                in_flight = self.journal.in_flight(running.workload.name)
                self._send(
                    protocol.StartWorkload(running.workload, running.next_index, in_flight)
                )
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

    def _connect(self) -> Connection:
        options = LaunchOptions(
            changes=difference(self.config, EngineConfig()), random_layers=self._random[0],
            random_seed=self._random[1], paused=self._paused, speed=self._speed,
            first_request_number=self.journal.next_request_number(),
        )
        return Connection(
            options, on_frame=self._on_frame, on_published=self._on_published,
            on_death=self._on_death, want_frames=True,
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
        if reply.error:
            raise protocol.error_from(reply.error_kind, reply.error)
        return msgspec.msgpack.decode(reply.value, type=kind)

    def _on_frame(self, frame: bytes, is_loading: bool) -> None:
        with self._lock:
            self._frame = frame
            callbacks = list(self._callbacks)
            if self._loading and not is_loading:
                self._loading = False
                self._connection.want_frames(bool(callbacks))
        if not is_loading:
            self._ready.set()
        for callback in callbacks:
            callback(frame)

    def _on_published(self, message: protocol.Published) -> None:
        with self._lock:
            self.journal.record(message)

    def _on_death(self, reason: str) -> None:
        with self._lock:
            self._reason = reason
            callbacks = list(self._death_callbacks)
            if self._frame:
                snapshot, cells, tables = decode_frame(self._frame)
                dead = msgspec.structs.replace(snapshot, state="dead", state_detail=reason)
                self._frame = encode_frame(dead, cells, tables)
        self._ready.set()
        for callback in callbacks:
            callback(reason)
