"""What a client remembers of each request, so that streams survive the engine's death.

Kept in the client's memory: prompt, sampling seed and every token received. Nothing here imports
torch.
"""

from dataclasses import dataclass, field

import msgspec

from workbench.cache_control import CacheUsage
from workbench.engine.process.arrivals import with_answer
from workbench.engine.process.protocol import (
    Announcement,
    OutputBatch,
    Published,
    StartWorkload,
    Workload,
    WorkloadEnded,
    WorkloadStarted,
)
from workbench.request import RequestOutput, RequestSpec


@dataclass
class Entry:
    """One request: as submitted, and what came back so far."""

    request_id: str
    spec: RequestSpec
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    status: str = "waiting"
    error: str = ""
    usage: CacheUsage | None = None  # once it has ended
    workload: str = ""
    workload_index: int = -1

    @property
    def is_finished(self) -> bool:
        """True once nothing more will come."""
        return self.status.startswith("finished")

    def resumed_spec(self) -> RequestSpec:
        """The request that goes on after the tokens received."""
        return msgspec.structs.replace(
            self.spec, request_id=self.request_id, resume_tokens=list(self.token_ids)
        )


@dataclass
class RunningWorkload:
    """A workload that was started, and the first of its arrivals not submitted yet."""

    workload: Workload
    next_index: int = 0


class Journal:
    """Requests by id in the order they were accepted; old finished ones are forgotten."""

    def __init__(self, max_finished: int = 500) -> None:
        self.entries: dict[str, Entry] = {}
        self.workloads: dict[str, RunningWorkload] = {}
        self._max_finished = max_finished

    def record(self, message: Published) -> None:
        """Take in one published message."""
        if isinstance(message, Announcement):
            if message.fresh:
                self.entries.pop(message.request_id, None)
            self.add(message)
            if message.workload in self.workloads:
                running = self.workloads[message.workload]
                running.next_index = max(running.next_index, message.workload_index + 1)
        elif isinstance(message, OutputBatch):
            for output in message.outputs:
                self.extend(output)
        elif isinstance(message, WorkloadStarted):
            running = RunningWorkload(message.workload, message.first_index)
            self.workloads[message.workload.name] = running
        elif isinstance(message, WorkloadEnded):
            self.workloads.pop(message.name, None)

    def add(self, accepted: Announcement) -> None:
        """A request was accepted; one that is resumed keeps its tokens and text."""
        known = self.entries.get(accepted.request_id)
        if known is not None and not known.is_finished:
            return
        self.entries[accepted.request_id] = Entry(
            accepted.request_id,
            accepted.spec,
            token_ids=list(accepted.spec.resume_tokens),
            workload=accepted.workload,
            workload_index=accepted.workload_index,
        )
        self._forget_old()

    def resumed_workloads(self) -> list[StartWorkload]:
        """What starts each running workload again, where it stood."""
        return [
            StartWorkload(
                running.workload,
                running.next_index,
                in_flight=self._in_flight(running.workload.name),
                conversations=self._conversations(running.workload),
            )
            for running in self.workloads.values()
        ]

    def _in_flight(self, workload: str) -> dict[str, int]:
        return {e.request_id: e.workload_index for e in self.unfinished() if e.workload == workload}

    def _conversations(self, workload: Workload) -> dict[int, list[dict[str, str]]]:
        followed = {arrival.follows for arrival in workload.arrivals}
        return {
            entry.workload_index: with_answer(entry.spec.messages, entry.text)
            for entry in self.entries.values()
            if entry.workload == workload.name
            and entry.is_finished
            and entry.spec.messages is not None
            and entry.workload_index % len(workload.arrivals) in followed
        }

    def extend(self, output: RequestOutput) -> None:
        """New tokens of a request, or its end."""
        entry = self.entries.get(output.request_id)
        if entry is None or entry.is_finished:
            return
        entry.token_ids.extend(output.new_token_ids)
        entry.text += output.new_text
        entry.status = output.status
        entry.error = output.error
        entry.usage = output.usage

    def unfinished(self) -> list[Entry]:
        """Requests to resubmit, in order."""
        return [entry for entry in self.entries.values() if not entry.is_finished]

    def give_up(self) -> None:
        """Mark everything unfinished as aborted and forget the workloads."""
        for entry in self.unfinished():
            entry.status = "finished_aborted"
        self.workloads.clear()

    def next_request_number(self) -> int:
        """The first number that no request was named by."""
        numbers = [int(name) for name in self.entries if name.isdigit()]
        return max(numbers, default=0) + 1

    def _forget_old(self) -> None:
        finished = [name for name, entry in self.entries.items() if entry.is_finished]
        for name in finished[: max(0, len(finished) - self._max_finished)]:
            del self.entries[name]
