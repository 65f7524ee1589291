"""Windows of measurements, and the numbers they give: value, percentile, window, samples."""

from collections import deque

import numpy as np

from workbench.clock import Clock
from workbench.request import Request
from workbench.snapshot import Number

WINDOW_S = 30.0
MIN_SAMPLES_P99 = 100


class Window:
    """Samples of the last `window_s` seconds."""

    def __init__(self, clock: Clock, window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self.window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()
        self._total = 0.0

    def add(self, value: float) -> None:
        """One more sample, now."""
        self._samples.append((self._clock.now_s(), value))
        self._total += value
        self._trim()

    def _trim(self) -> None:
        oldest = self._clock.now_s() - self.window_s
        while self._samples and self._samples[0][0] < oldest:
            self._total -= self._samples.popleft()[1]

    def values(self) -> list[float]:
        """Samples inside the window."""
        self._trim()
        return [value for _, value in self._samples]

    def percentile(self, share: int, unit: str) -> Number:
        """The p-th percentile; p99 needs 100 samples to mean anything."""
        values = self.values()
        need = MIN_SAMPLES_P99 if share >= 99 else 1
        label = f"p{share}"
        if len(values) < need:
            why = f"{len(values)} of {need} samples" if values else "no sample in the window"
            return Number(
                value=None,
                unit=unit,
                percentile=label,
                samples=len(values),
                window_s=self.window_s,
                why=why,
            )
        return Number(
            value=float(np.percentile(values, share)),
            unit=unit,
            percentile=label,
            samples=len(values),
            window_s=self.window_s,
        )

    def rate(self, unit: str) -> Number:
        """Sum of the samples per second over the part of the window that has passed."""
        self._trim()
        if not self._samples:
            why = "nothing in the window"
            return Number(value=None, unit=unit, window_s=self.window_s, why=why)
        elapsed = max(self._clock.now_s() - self._samples[0][0], 1e-3)
        return Number(
            value=self._total / elapsed,
            unit=unit,
            samples=len(self._samples),
            window_s=self.window_s,
        )


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
        self._prefill_s_per_token: float | None = None

    def computed(self, request: Request, num_tokens: int) -> None:
        """A step is about to move a request on: count its tokens, and those computed before."""
        start = request.num_computed_tokens
        again = min(num_tokens, max(0, request.max_computed_tokens - start))
        request.num_recomputed_tokens += again
        request.max_computed_tokens = max(request.max_computed_tokens, start + num_tokens)
        self.recomputed_tokens += again
        self.computed_tokens += num_tokens
        phase = self.prefill_tokens if num_tokens > 1 else self.decode_tokens
        phase.add(num_tokens)

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """A step that was mostly prefill: learn the time to (re)compute a token."""
        per_token = seconds / num_tokens
        known = self._prefill_s_per_token
        self._prefill_s_per_token = per_token if known is None else 0.8 * known + 0.2 * per_token

    def recompute_s(self, num_tokens: int) -> float | None:
        """Predicted seconds to compute so many tokens; None before anything was measured."""
        known = self._prefill_s_per_token
        return None if known is None else known * num_tokens

    def numbers(self) -> dict[str, Number]:
        """Every figure by its name."""
        return {
            "hit_rate": share(self.hit_tokens, self.prompt_tokens, "no prompt admitted yet"),
            "hit_rate_resumed": share(
                self.resumed_hit_tokens, self.resumed_tokens, "nothing was preempted"
            ),
            "ttft_p50": self.ttft_ms.percentile(50, "ms"),
            "ttft_p99": self.ttft_ms.percentile(99, "ms"),
            "itl_p50": self.itl_ms.percentile(50, "ms"),
            "itl_p99": self.itl_ms.percentile(99, "ms"),
            "step_ms": self.step_ms.percentile(50, "ms"),
            "tokens_per_s": self.output_tokens.rate("tok/s"),
            "prefill_tokens_per_s": self.prefill_tokens.rate("tok/s"),
            "decode_tokens_per_s": self.decode_tokens.rate("tok/s"),
            "num_preemptions": Number(value=self.num_preemptions, unit=""),
            "recomputed_tokens": Number(value=self.recomputed_tokens, unit="tok"),
            "recompute_tax": share(
                self.recomputed_tokens, self.computed_tokens, "nothing computed yet"
            ),
        }


def share(part: float, whole: float, why: str) -> Number:
    """A percentage, or n/a where there is nothing to divide by (never 0 %)."""
    if whole <= 0:
        return Number(value=None, unit="%", why=why)
    return Number(value=100.0 * part / whole, unit="%", samples=int(whole))
