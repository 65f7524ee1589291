"""Submits the requests of running workloads when they are due, on the engine's clock."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from workbench.cache_control import moved_breakpoints
from workbench.engine.process.protocol import Arrival, StartWorkload, Workload
from workbench.errors import RequestError
from workbench.request import RequestSpec


@dataclass
class _Running:
    """One workload under way; request ids are None where an arrival was refused."""

    workload: Workload
    started_s: float
    next_index: int
    in_flight: dict[str, int] = field(default_factory=dict)  # request id -> index
    conversations: dict[int, list[dict[str, str]]] = field(default_factory=dict)  # by index
    followed: frozenset[int] = frozenset()  # arrivals that a later turn waits for

    @property
    def num_arrivals(self) -> int:
        return len(self.workload.arrivals)

    def arrival(self, index: int) -> Arrival:
        return self.workload.arrivals[index % self.num_arrivals]

    def is_over(self) -> bool:
        return not self.workload.repeat and self.next_index >= self.num_arrivals


class ArrivalPlanner:
    """Holds workloads; `due` submits what is due and `finished` tells it of ends.

    `submit(spec, workload name, index)` returns the request id or raises RequestError.
    """

    def __init__(
        self, submit: Callable[[RequestSpec, str, int], str], now_s: Callable[[], float]
    ) -> None:
        self._submit = submit
        self._now_s = now_s
        self._running: dict[str, _Running] = {}

    @property
    def names(self) -> list[str]:
        """Workloads that still have requests to come."""
        return list(self._running)

    def start(self, command: StartWorkload) -> list[str]:
        """Begin a workload, or go on with one after a restart.

        Returns the ids submitted at once; raises RequestError when the first one is refused.
        """
        workload, first_index = command.workload, command.first_index
        if not workload.arrivals:
            raise RequestError(f"workload {workload.name!r} has no requests: give at least one")
        running = _Running(workload, self._now_s(), first_index)
        running.in_flight.update(command.in_flight)
        running.conversations.update(command.conversations)
        running.started_s -= self._offset_s(running, first_index)
        running.followed = frozenset(a.follows for a in workload.arrivals if a.follows >= 0)
        self._running[workload.name] = running
        try:
            return self._submit_due(running, strict=True)
        except RequestError:
            del self._running[workload.name]
            raise

    def stop(self, name: str) -> None:
        """Forget one workload, if it has requests to come."""
        self._running.pop(name, None)

    def clear(self) -> None:
        """Forget all workloads."""
        self._running.clear()

    def due(self) -> list[str]:
        """Submit what is due now; returns the new request ids."""
        new: list[str] = []
        for name, running in list(self._running.items()):
            new += self._submit_due(running, strict=False)
            if running.is_over() and not running.in_flight:
                del self._running[name]
        return new

    def next_due_in_s(self) -> float | None:
        """Seconds until the next arrival by time, or None when none is planned."""
        waits = []
        for running in self._running.values():
            if not running.is_over() and self._has_room(running):
                at_s = running.started_s + self._offset_s(running, running.next_index)
                waits.append(max(0.0, at_s - self._now_s()))
        return min(waits, default=None)

    def finished(self, request_id: str, spec: RequestSpec, answer: str) -> None:
        """A request ended with this answer; a turn that follows it may arrive."""
        for running in self._running.values():
            index = running.in_flight.pop(request_id, None)
            if index is None:
                continue
            if index % running.num_arrivals in running.followed and spec.messages is not None:
                running.conversations[index] = with_answer(spec.messages, answer)

    def _has_room(self, running: _Running) -> bool:
        limit = running.workload.max_in_flight
        if limit and len(running.in_flight) >= limit:
            return False
        arrival = running.arrival(running.next_index)
        return arrival.follows < 0 or self._followed_index(running) not in (
            running.in_flight.values()
        )

    def _followed_index(self, running: _Running) -> int:
        base = running.next_index - running.next_index % running.num_arrivals
        return base + running.arrival(running.next_index).follows

    def _offset_s(self, running: _Running, index: int) -> float:
        span_s = running.workload.arrivals[-1].at_s
        return running.arrival(index).at_s + index // running.num_arrivals * span_s

    def _submit_due(self, running: _Running, strict: bool) -> list[str]:
        new: list[str] = []
        while not running.is_over() and self._has_room(running):
            index = running.next_index
            if self._now_s() < running.started_s + self._offset_s(running, index):
                break
            spec = self._spec(running, index)
            running.next_index += 1
            try:
                request_id = self._submit(spec, running.workload.name, index)
            except RequestError:
                if strict and not new:
                    raise
                continue  # the engine has told it as an event; the others go on
            running.in_flight[request_id] = index
            new.append(request_id)
        return new

    def _spec(self, running: _Running, index: int) -> RequestSpec:
        arrival = running.arrival(index)
        spec = arrival.spec
        if arrival.follows >= 0:
            earlier = running.conversations.pop(self._followed_index(running), [])
            if spec.messages is not None:
                spec = msgspec.structs.replace(
                    spec,
                    messages=[*earlier, *spec.messages],
                    cache_control=moved_breakpoints(spec.cache_control, len(earlier)),
                )
        cycle = index // running.num_arrivals
        if cycle:
            sampling = msgspec.structs.replace(spec.sampling, seed=spec.sampling.seed + cycle)
            spec = msgspec.structs.replace(spec, sampling=sampling)
        return spec


def with_answer(messages: list[dict[str, str]], answer: str) -> list[dict[str, str]]:
    """A conversation with what the model said last."""
    # A template may refuse an empty message.
    return [*messages, {"role": "assistant", "content": answer or "..."}]
