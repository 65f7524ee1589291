"""Time for the engine: all code asks a clock, none calls `time.time()`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """What the engine needs of time, in seconds."""

    def now_s(self) -> float:
        """Monotonic seconds; stands still while the metrics' clock is paused."""

    def cpu_s(self) -> float:
        """CPU seconds this process has used."""

    def wall_s(self) -> float:
        """Seconds since the epoch: time stamps, and what goes on in a pause."""


class RealClock:
    """The machine's monotonic clock, with time spent paused taken out."""

    def __init__(self) -> None:
        self._paused_at: float | None = None
        self._paused_total_s = 0.0

    def now_s(self) -> float:
        """Monotonic seconds without the pauses."""
        reference = self._paused_at if self._paused_at is not None else time.perf_counter()
        return reference - self._paused_total_s

    def cpu_s(self) -> float:
        """CPU seconds of this process."""
        return time.process_time()

    def wall_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def pause(self) -> None:
        """Stop `now_s`, so that latencies do not count the pause."""
        if self._paused_at is None:
            self._paused_at = time.perf_counter()

    def resume(self) -> None:
        """Let `now_s` run on from where it stopped."""
        if self._paused_at is not None:
            self._paused_total_s += time.perf_counter() - self._paused_at
            self._paused_at = None


class ManualClock:
    """A clock that moves only when told to: modelled runs and tests."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """The time that was set."""
        return self._now_s

    def cpu_s(self) -> float:
        """Same as `now_s`: modelled time has no idle."""
        return self._now_s

    def wall_s(self) -> float:
        """Same as `now_s`."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move on by a non-negative number of seconds."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: time does not run backwards")
        self._now_s += seconds

    def pause(self) -> None:
        """Nothing to stop: this clock moves only when told to."""

    def resume(self) -> None:
        """Nothing to resume."""


class ServingClock:
    """Another clock without what is done aside: time as the requests of an engine would feel it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._aside_s = self._aside_cpu_s = 0.0
        self._stopped: tuple[float, float] | None = None

    def now_s(self) -> float:
        """Seconds of the other clock that served requests."""
        now_s = self._clock.now_s() if self._stopped is None else self._stopped[0]
        return now_s - self._aside_s

    def cpu_s(self) -> float:
        """CPU seconds of this process that did so."""
        cpu_s = self._clock.cpu_s() if self._stopped is None else self._stopped[1]
        return cpu_s - self._aside_cpu_s

    def wall_s(self) -> float:
        """Seconds since the epoch."""
        return self._clock.wall_s()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Work that no request has asked for."""
        start_s, start_cpu_s = self._clock.now_s(), self._clock.cpu_s()
        self._stopped = (start_s, start_cpu_s)
        try:
            yield
        finally:
            self._aside_s += self._clock.now_s() - start_s
            self._aside_cpu_s += self._clock.cpu_s() - start_cpu_s
            self._stopped = None
