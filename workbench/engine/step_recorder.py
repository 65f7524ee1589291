"""Where the time of each step went."""

import numpy as np

from workbench.clock import Clock
from workbench.engine.runner import ForwardBatch
from workbench.engine.step_attention import StepTiming
from workbench.views import StepView


class StepRecorder:
    """Stop-watch over schedule, run and update; wall and CPU time apart."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last: StepView | None = None
        self._started_s = self._cpu_s = self._scheduled_s = 0.0
        self._timing: StepTiming

    def start(self) -> None:
        """A step begins."""
        self._started_s, self._cpu_s = self._clock.now_s(), self._clock.cpu_s()

    def scheduled(self) -> None:
        """The batch is chosen."""
        self._scheduled_s = self._clock.now_s()

    def ran(self, timing: StepTiming) -> None:
        """The forward pass is done."""
        self._timing = timing

    def finish(self, step: int, batch: ForwardBatch) -> StepView:
        """The step is over: its parts in ms."""
        timing, timers = self._timing, self._timing.timers
        attention_s = timing.attention.seconds()
        computed_s = timing.forward.seconds() - timing.load_s
        wall_s = self._clock.now_s() - self._started_s
        fused = timing.attention.on_gpu  # one kernel reads pages, decodes and attends
        scheduler_s = self._scheduled_s - self._started_s
        num_tokens, num_decodes = int(batch.q_lens.sum()), count_decodes(batch)
        self.last = StepView(
            step=step,
            num_prefill_tokens=num_tokens - num_decodes,
            num_decode_tokens=num_decodes,
            num_requests=len(batch.requests),
            wall_ms=wall_s * 1e3,
            cpu_ms=(self._clock.cpu_s() - self._cpu_s) * 1e3,
            attention_ms=max(0.0, attention_s - timers.gather_s - timers.dequant_s) * 1e3,
            linears_ms=max(0.0, computed_s - attention_s) * 1e3,
            gather_ms=None if fused else timers.gather_s * 1e3,
            dequant_ms=None if fused else timers.dequant_s * 1e3,
            scheduler_ms=scheduler_s * 1e3,
            other_ms=max(0.0, wall_s - computed_s - scheduler_s) * 1e3,
        )
        return self.last


def count_decodes(batch: ForwardBatch) -> int:
    """Requests that computed the token they sampled last, alone; all else is known text."""
    newest = {id(request) for request in batch.logit_requests}
    starts = batch.positions[np.cumsum(batch.q_lens) - batch.q_lens].tolist()
    counts = batch.q_lens.tolist()
    return sum(
        count == 1 and id(request) in newest and start >= request.num_known_tokens
        for request, start, count in zip(batch.requests, starts, counts, strict=True)
    )
