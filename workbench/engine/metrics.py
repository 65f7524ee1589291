"""Windows of measurements, and the numbers they give: value, percentile, window, samples."""

from collections import deque

import msgspec
import numpy as np

from workbench.clock import Clock
from workbench.engine.prefill_fit import PrefillFit
from workbench.engine.read_traffic import ReadTraffic
from workbench.engine.runner import ForwardBatch
from workbench.request import Request
from workbench.views import Number

WINDOW_S = 30.0
MIN_SAMPLES_P99 = 100
MIN_RATE_S = 1.0  # a rate over less is chance
NO_SAMPLE = "no sample in the window"


class Window:
    """Samples of the last `window_s` seconds, and which of them came since the last mark."""

    def __init__(self, clock: Clock, window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self.window_s = window_s
        self._times: deque[float] = deque()
        self._values: deque[float] = deque()
        self._total = 0.0
        self._mark_s: float | None = None
        self._num_after = 0
        self._total_after = 0.0

    def add(self, value: float) -> None:
        """One more sample, now."""
        self._times.append(self._clock.now_s())
        self._values.append(value)
        self._total += value
        self._num_after += 1
        self._total_after += value
        self._trim()

    def mark(self) -> None:
        """A change takes effect now: `after` of the numbers has samples from here on alone."""
        self._mark_s = self._clock.now_s()
        self._num_after, self._total_after = 0, 0.0

    def _trim(self) -> None:
        oldest = self._clock.now_s() - self.window_s
        while self._times and self._times[0] < oldest:
            self._times.popleft()
            self._total -= self._values.popleft()
        if self._num_after > len(self._values):  # the mark has left the window
            self._num_after, self._total_after = len(self._values), self._total

    def values(self) -> list[float]:
        """Samples inside the window."""
        self._trim()
        return list(self._values)

    def percentile(self, share: int, unit: str) -> Number:
        """The p-th percentile; p99 needs 100 samples to mean anything."""
        return self.percentiles((share,), unit)[0]

    def percentiles(self, shares: tuple[int, ...], unit: str) -> list[Number]:
        """Several percentiles, as `percentile` gives them, sorted but once."""
        self._trim()
        values = np.fromiter(self._values, np.float64, len(self._values))
        after = values[len(values) - self._num_after :] if self._mark_s is not None else values[:0]
        found = np.percentile(values, shares) if len(values) else values
        found_after = np.percentile(after, shares) if len(after) else after
        numbers = []
        for index, share in enumerate(shares):
            need = MIN_SAMPLES_P99 if share >= 99 else 1
            missing = f"{len(values)} of {need} samples" if len(values) else NO_SAMPLE
            numbers.append(
                Number(
                    value=float(found[index]) if len(values) >= need else None,
                    unit=unit,
                    percentile=f"p{share}",
                    samples=len(values),
                    window_s=self.window_s,
                    why="" if len(values) >= need else missing,
                    after=float(found_after[index]) if len(after) >= need else None,
                    after_samples=len(after),
                )
            )
        return numbers

    def rate(self, unit: str) -> Number:
        """Sum of the samples per second over the part of the window that has passed."""
        self._trim()
        if not self._values:
            why = "nothing in the window"
            return Number(value=None, unit=unit, window_s=self.window_s, why=why)
        now_s = self._clock.now_s()
        elapsed = max(now_s - self._times[0], 1e-3)
        number = Number(
            value=self._total / elapsed,
            unit=unit,
            samples=len(self._values),
            window_s=self.window_s,
        )
        if self._mark_s is None or now_s - self._mark_s < MIN_RATE_S:
            return number
        after_s = min(now_s - self._mark_s, self.window_s)
        after, count = self._total_after / after_s, self._num_after
        return msgspec.structs.replace(number, after=after, after_samples=count)


class Metrics:
    """All windows and totals of one engine. Pauses are taken out by the clock."""

    def __init__(self, clock: Clock) -> None:
        self.ttft_ms = Window(clock)
        self.itl_ms = Window(clock)
        self.step_ms = Window(clock)
        self.output_tokens = Window(clock, 5.0)
        self.prefill_tokens = Window(clock, 5.0)
        self.decode_tokens = Window(clock, 5.0)
        self.preemptions = Window(clock, 2.0)
        self.evictions = Window(clock, 5.0)
        self.prompt_tokens = 0  # first admissions
        self.hit_tokens = 0
        self.resumed_tokens = 0  # after preemption
        self.resumed_hit_tokens = 0
        self.computed_tokens = 0
        self.recomputed_tokens = 0
        self.num_preemptions = 0
        self.read_mib = Window(clock)  # of pages and bounds, a step
        self.pages_read = 0  # by attention; a page counts once a layer
        self.pages_skipped = 0
        self.prefill = PrefillFit()
        self._totals_at_mark = self._totals()

    def mark(self) -> None:
        """A change of settings takes effect now."""
        for window in (self.ttft_ms, self.itl_ms, self.step_ms, self.read_mib, self.output_tokens,
                       self.prefill_tokens, self.decode_tokens):  # fmt: skip
            window.mark()
        self._totals_at_mark = self._totals()

    def preempted(self, count: int) -> int:
        """Count preemptions of a step; returns how many there were in the window."""
        self.num_preemptions += count
        for _ in range(count):
            self.preemptions.add(1)
        return len(self.preemptions.values())

    def _totals(self) -> dict[str, tuple[int, int]]:
        """Part and whole of each share."""
        return {
            "hit_rate": (self.hit_tokens, self.prompt_tokens),
            "hit_rate_resumed": (self.resumed_hit_tokens, self.resumed_tokens),
            "recompute_tax": (self.recomputed_tokens, self.computed_tokens),
            "pages_skipped": (self.pages_skipped, self.pages_read + self.pages_skipped),
        }

    def _share(self, name: str, why: str) -> Number:
        """A share of all so far, and of what came since the mark."""
        part, whole = self._totals()[name]
        part_then, whole_then = self._totals_at_mark[name]
        number = share(part, whole, why)
        if whole <= whole_then:
            return number
        after = 100.0 * (part - part_then) / (whole - whole_then)
        return msgspec.structs.replace(number, after=after, after_samples=whole - whole_then)

    def computed(self, request: Request, num_tokens: int) -> None:
        """A step is about to move a request on: count its tokens, and those computed before."""
        start = request.num_computed_tokens
        again = min(num_tokens, max(0, request.max_computed_tokens - start))
        request.num_recomputed_tokens += again
        request.max_computed_tokens = max(request.max_computed_tokens, start + num_tokens)
        self.recomputed_tokens += again
        self.computed_tokens += num_tokens
        known = num_tokens > 1 or request.is_prefill or start < request.num_known_tokens
        phase = self.prefill_tokens if known else self.decode_tokens
        phase.add(num_tokens)

    def observe_step(self, wall_ms: float, batch: ForwardBatch, traffic: ReadTraffic) -> None:
        """A step's time and reads."""
        self.step_ms.add(wall_ms)
        self.observe_reads(traffic)
        num_tokens = int(batch.q_lens.sum())  # steps of single tokens would teach the step's cost
        if int(batch.q_lens[batch.q_lens > 1].sum()) > 0.8 * num_tokens:
            self.prefill.observe(num_tokens, wall_ms / 1e3, float(batch.positions.mean()))

    def observe_reads(self, traffic: ReadTraffic) -> None:
        """What attention of a step read, and the pages that sparse reads left out."""
        self.pages_read += traffic.pages_read
        self.pages_skipped += traffic.pages_skipped
        self.read_mib.add((traffic.read_bytes + traffic.bounds_bytes) / 2**20)

    def recompute_s(self, num_tokens: int) -> float | None:
        """Predicted seconds to compute so many tokens; None before anything was measured."""
        known = self.prefill.s_per_token
        return None if known is None else known * num_tokens

    def numbers(self) -> dict[str, Number]:
        """Every figure by its name."""
        ttft_p50, ttft_p99 = self.ttft_ms.percentiles((50, 99), "ms")
        itl_p50, itl_p99 = self.itl_ms.percentiles((50, 99), "ms")
        return {
            "hit_rate": self._share("hit_rate", "no prompt admitted yet"),
            "hit_rate_resumed": self._share(
                "hit_rate_resumed", "no preempted request has come back yet"
            ),
            "ttft_p50": ttft_p50,
            "ttft_p99": ttft_p99,
            "itl_p50": itl_p50,
            "itl_p99": itl_p99,
            "step_ms": self.step_ms.percentile(50, "ms"),
            "tokens_per_s": self.output_tokens.rate("tok/s"),
            "prefill_tokens_per_s": self.prefill_tokens.rate("tok/s"),
            "decode_tokens_per_s": self.decode_tokens.rate("tok/s"),
            "num_preemptions": Number(value=self.num_preemptions, unit=""),
            "recomputed_tokens": Number(value=self.recomputed_tokens, unit="tok"),
            "recompute_tax": self._share("recompute_tax", "nothing computed yet"),
            "read_mib": self.read_mib.percentile(50, "MiB"),
            "pages_skipped": self._share("pages_skipped", "nothing read yet"),
        }


def share(part: float, whole: float, why: str) -> Number:
    """A percentage, or n/a where there is nothing to divide by (never 0 %)."""
    if whole <= 0:
        return Number(value=None, unit="%", why=why)
    return Number(value=100.0 * part / whole, unit="%", samples=int(whole))
