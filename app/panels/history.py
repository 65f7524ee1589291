"""The one stack of applied changes that all tabs share, with undo and redo.

A tab states the version it has seen; a change made against an older version is refused with one
sentence, so that two tabs never overwrite each other unseen.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from workbench.clock import Clock
from workbench.config import EngineConfig, replace_settings
from workbench.errors import SettingError
from workbench.snapshot import decode_frame
from workbench.views import ApplyReport

COALESCE_S = 0.5  # from one change's report to the arrival of the next
MAX_ENTRIES = 200


class Applier(Protocol):
    """What the stack needs of an engine's client."""

    def apply(self, changes: dict[str, Any]) -> ApplyReport:
        """Change settings and say what was done."""

    def latest_frame(self) -> bytes:
        """The newest picture of the engine, without a question to it while somebody looks."""

    def abort(self, request_id: str) -> bool:
        """Stop one request."""

    def stop_workload(self, name: str) -> int:
        """Stop what a workload still has to come, and its requests."""


class ConflictError(SettingError):
    """Another tab changed a setting first; the message is the paths that were to change."""


@dataclass(frozen=True)
class Entry:
    """One undoable change: settings, or requests that were started together.

    `engine_time_s` is its place on the sparklines.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    previous: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    request_ids: tuple[str, ...] = ()
    workload: str = ""  # its requests may arrive later than at once
    start_requests: Callable[[], list[str]] | None = None
    report: ApplyReport | None = None
    engine_time_s: float = 0.0
    at_s: float = 0.0


class History:
    """Applied changes of one engine; every method may be called from any tab's thread."""

    def __init__(self, client: Applier, config: EngineConfig, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.RLock()
        self._done: list[Entry] = []
        self._undone: list[Entry] = []
        self.config = config
        self.version = 0
        self.engine_version = 0  # of the engine's own count, to know a frame that is newer

    def apply(self, changes: dict[str, Any], seen_version: int, label: str = "") -> ApplyReport:
        """Apply `changes` at once; raises ConflictError if `seen_version` is old.

        The same settings changed again at once (COALESCE_S) are one entry: one undo, one mark.
        """
        with self._lock:
            if seen_version != self.version:
                raise ConflictError(", ".join(changes))
            wanted = replace_settings(self.config, changes)  # validates before anything is sent
            arrived_s = self._clock.now_s()
            entry = self._send(changes, label)
            last = self._done[-1] if self._done else None
            if last and self._continues(last, entry, arrived_s):
                merged = {**entry.previous, **last.previous}
                self._done[-1] = replace(entry, previous=merged, engine_time_s=last.engine_time_s)
            else:
                self._done = [*self._done[-MAX_ENTRIES + 1 :], entry]
            self._undone.clear()
            self.config = wanted
            assert entry.report is not None
            return entry.report

    def start(
        self, start_requests: Callable[[], list[str]], label: str, workload: str = ""
    ) -> list[str]:
        """Start requests as an undoable change; undo aborts them, redo starts them again.

        `workload` names what undo stops besides: requests that arrive later.
        """
        with self._lock:
            time_s = self._engine_time_s()
            ids = start_requests()
            self._done.append(
                Entry(
                    label=label,
                    request_ids=tuple(ids),
                    start_requests=start_requests,
                    workload=workload,
                    engine_time_s=time_s,
                    at_s=self._clock.now_s(),
                )
            )
            self._undone.clear()
            return ids

    def undo(self) -> Entry | None:
        """Take the newest change back; None if there is none."""
        with self._lock:
            if not self._done:
                return None
            entry = self._done[-1]
            if entry.changes:
                report = self._client.apply(entry.previous)
                self.config = replace_settings(self.config, entry.previous)
                self.version += 1
                self.engine_version = report.version
            if entry.workload:
                self._client.stop_workload(entry.workload)
            for request_id in entry.request_ids:
                self._client.abort(request_id)
            self._undone.append(self._done.pop())
            return entry

    def redo(self) -> Entry | None:
        """Make the change that was taken back last again; None if there is none."""
        with self._lock:
            if not self._undone:
                return None
            entry = self._undone[-1]
            if entry.start_requests is not None:
                again = replace(entry, request_ids=tuple(entry.start_requests()))
            else:
                again = self._send(entry.changes, entry.label)
                self.config = replace_settings(self.config, entry.changes)
            self._undone.pop()
            self._done.append(again)
            return again

    @property
    def can_undo(self) -> bool:
        """True if there is something to take back."""
        return bool(self._done)

    @property
    def can_redo(self) -> bool:
        """True if something was taken back and can be made again."""
        return bool(self._undone)

    @property
    def last(self) -> Entry | None:
        """The newest change that stands."""
        return self._done[-1] if self._done else None

    @property
    def next(self) -> Entry | None:
        """What redo would make again."""
        return self._undone[-1] if self._undone else None

    def marks(self) -> list[Entry]:
        """Changes that stand, oldest first."""
        with self._lock:
            return list(self._done)

    def follow(self, settings: dict[str, Any]) -> None:
        """Take over settings that changed elsewhere (a restart, another program)."""
        with self._lock:
            config = replace_settings(EngineConfig(), settings)
            if config != self.config:
                self.config = config
                self.version += 1

    def _send(self, changes: dict[str, Any], label: str) -> Entry:
        time_s = self._engine_time_s()
        report = self._client.apply(changes)
        self.version += 1
        self.engine_version = report.version
        return Entry(
            changes=dict(report.changes) or dict(changes),
            previous=dict(report.previous),
            label=label,
            report=report,
            engine_time_s=time_s,
            at_s=self._clock.now_s(),
        )

    def _engine_time_s(self) -> float:
        """The engine's clock at its newest frame; asking it would wait for the running step."""
        frame = self._client.latest_frame()
        return decode_frame(frame)[0].time_s if frame else 0.0

    def _continues(self, last: Entry, entry: Entry, arrived_s: float) -> bool:
        return (
            last.changes.keys() == entry.changes.keys()
            and bool(entry.changes)
            and (arrived_s - last.at_s <= COALESCE_S)
        )
