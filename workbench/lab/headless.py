"""Serves a workload in process to its end and measures it from the requests' side."""

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from workbench.cache_control import CacheUsage
from workbench.clock import Clock, RealClock
from workbench.config import EngineConfig
from workbench.engine.heap import settle_heap
from workbench.engine.process.host import EngineHost
from workbench.engine.process.protocol import (
    Announcement,
    OutputBatch,
    Published,
    StartWorkload,
    Workload,
)
from workbench.events import KVEventBatch
from workbench.lab.figures import Figure
from workbench.request import RequestOutput
from workbench.snapshot import Snapshot

Progress = Callable[[str, int], None]


@dataclass
class Answer:
    """One request as its user saw it; times in seconds on the engine's clock."""

    request_id: str
    accepted_s: float
    token_times_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    text: str = ""
    status: str = "waiting"
    error: str = ""
    usage: CacheUsage | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self.status.startswith("finished")


@dataclass(frozen=True)
class Served:
    """Every answer in the order of acceptance, and the figures of the run."""

    answers: list[Answer]
    figures: list[Figure]


class _Recorder:
    """Receives what the engine publishes."""

    def __init__(self, clock: Clock) -> None:
        self.answers: dict[str, Answer] = {}
        self._clock = clock

    def __call__(self, message: Published) -> None:
        if isinstance(message, Announcement):
            self.answers[message.request_id] = Answer(message.request_id, self._clock.now_s())
        elif isinstance(message, OutputBatch):
            for output in message.outputs:
                self._take(output)

    @property
    def num_finished(self) -> int:
        return sum(answer.is_finished for answer in self.answers.values())

    def _take(self, output: RequestOutput) -> None:
        answer = self.answers[output.request_id]
        answer.token_times_s += [self._clock.now_s()] * len(output.new_token_ids)
        answer.num_tokens = output.num_output_tokens
        answer.text += output.new_text
        answer.status, answer.error, answer.usage = output.status, output.error, output.usage


def serve(
    workload: Workload,
    config: EngineConfig,
    progress: Progress,
    policies: dict[str, str] | None = None,
    on_kv_events: Callable[[KVEventBatch], None] | None = None,
) -> Served:
    """Load the model, serve the workload to its end, return answers and figures.

    A workload that repeats is served once. `policies`: texts of the user's own files by name.
    `on_kv_events` gets what can be found where, in batches by step.
    Raises ModelError, CapacityError, SettingError, or RequestError when the first is refused.
    """
    from workbench.model.load import load_model

    progress("loading the model", 0)
    clock = RealClock()
    recorder = _Recorder(clock)
    host = EngineHost(
        clock, recorder, first_request_number=1, policies=policies, on_kv_events=on_kv_events
    )
    try:
        host.adopt(config, load_model(config.model.path, config.model.weight_format))
        settle_heap()
        start_s, start_cpu_s = clock.now_s(), clock.cpu_s()
        host.start_workload(StartWorkload(msgspec.structs.replace(workload, repeat=False)))
        _run_to_the_end(host, recorder, progress)
        wall_s, cpu_s = clock.now_s() - start_s, clock.cpu_s() - start_cpu_s
        answers = list(recorder.answers.values())
        num_refused = len(workload.arrivals) - len(answers)
        figures = request_figures(answers, num_refused, wall_s, cpu_s)
        return Served(answers, figures + engine_figures(host.engine.snapshot()))
    finally:
        host.close()


def _run_to_the_end(host: EngineHost, recorder: _Recorder, progress: Progress) -> None:
    idle = threading.Event()  # never set: waits without burning the CPU
    while True:
        host.planner.due()
        if host.engine.has_work():
            host.step()
        else:
            wait_s = host.planner.next_due_in_s()
            if wait_s is None:
                return
            idle.wait(min(wait_s, 0.1))
        num_tokens = sum(answer.num_tokens for answer in recorder.answers.values())
        progress(f"{num_tokens:,} tokens", recorder.num_finished)


def request_figures(
    answers: list[Answer], num_refused: int, wall_s: float, cpu_s: float
) -> list[Figure]:
    """Counts, throughput, TTFT and ITL; latencies without a sample say so."""
    ttft = [1e3 * (a.token_times_s[0] - a.accepted_s) for a in answers if a.token_times_s]
    gaps = [
        1e3 * (later - earlier)
        for answer in answers
        for earlier, later in zip(answer.token_times_s, answer.token_times_s[1:], strict=False)
    ]
    num_tokens = sum(answer.num_tokens for answer in answers)
    failed = [answer for answer in answers if answer.status == "finished_error"]
    return [
        Figure(name="num_requests", value=len(answers)),
        Figure(name="num_refused", value=num_refused),
        Figure(name="num_failed", value=len(failed), note=failed[0].error if failed else ""),
        Figure(name="num_output_tokens", value=num_tokens),
        *usage_figures([answer.usage for answer in answers if answer.usage]),
        Figure(name="wall_s", value=wall_s, unit="s"),
        Figure(name="cpu_s", value=cpu_s, unit="s"),
        Figure(name="output_tok_per_s", value=num_tokens / wall_s if wall_s else 0.0, unit="tok/s"),
        _median("ttft_p50_ms", ttft, "no request got a token"),
        _median("itl_p50_ms", gaps, "no request got two tokens"),
    ]


def usage_figures(usages: list[CacheUsage]) -> list[Figure]:
    """Prompt tokens that were read from the cache, written to be kept, or neither."""
    counts = {
        "input_tokens": sum(usage.input_tokens for usage in usages),
        "cache_read_input_tokens": sum(usage.cache_read_input_tokens for usage in usages),
        "cache_creation_input_tokens": sum(usage.cache_creation_input_tokens for usage in usages),
    }
    return [Figure(name=name, value=count, unit="tokens") for name, count in counts.items()]


def engine_figures(snapshot: Snapshot) -> list[Figure]:
    """The engine's weights and its own numbers at the end, with their provenance."""
    notes = [snapshot.weight_format, *(note.plain() for note in snapshot.weight_notes)]
    figures = [
        Figure(
            name="weight_bytes", value=snapshot.weight_bytes, unit="bytes", note="; ".join(notes)
        )
    ]
    for name, number in snapshot.numbers.items():
        note = ", ".join(part for part in (number.percentile, number.why) if part)
        figures.append(
            Figure(
                name=f"engine_{name.lower().replace('-', '_').replace(' ', '_')}",
                value=number.value,
                unit=number.unit,
                provenance=number.provenance,  # type: ignore[arg-type]
                note=note or ("" if number.value is not None else "not available"),
            )
        )
    return figures


def _median(name: str, samples: list[float], missing: str) -> Figure:
    if not samples:
        return Figure(name=name, value=None, unit="ms", note=missing)
    note = f"n {len(samples)}"
    return Figure(name=name, value=statistics.median(samples), unit="ms", note=note)
