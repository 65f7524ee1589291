"""Parts of a step are timed where they run: by the clock on a CPU, by events on a GPU."""

import pytest
import torch

from workbench.clock import ManualClock, RealClock
from workbench.engine.part_times import PartTimes
from workbench.lab.bench_runs import step_parts
from workbench.views import StepView

STEP = StepView(
    step=3, num_prefill_tokens=0, num_decode_tokens=6, num_requests=6, wall_ms=9.0, cpu_ms=9.0,
    attention_ms=4.0, linears_ms=3.0, gather_ms=None, dequant_ms=None, scheduler_ms=1.0,
    other_ms=1.0,
)  # fmt: skip


def test_spans_on_a_cpu_add_up_on_the_clock() -> None:
    clock = ManualClock()
    times = PartTimes(clock, "cpu")
    for seconds in (0.5, 0.25):
        times.start()
        clock.advance(seconds)
        times.stop()
        clock.advance(3.0)
    assert (times.seconds(), times.seconds(), times.on_gpu) == (0.75, 0.75, False)


def test_a_bench_tells_no_time_of_what_is_fused() -> None:
    told = step_parts([STEP, STEP])
    assert "attention 4.0" in told and "gather n/a (fused), dequant n/a (fused)" in told


@pytest.mark.long
@pytest.mark.skipif(not torch.cuda.is_available(), reason="events are a GPU's")
def test_spans_on_a_gpu_hold_what_ran_and_not_its_launch() -> None:
    clock = RealClock()
    times, matrix = PartTimes(clock, "cuda"), torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    begun = clock.now_s()
    times.start()
    for _ in range(8):
        matrix @ matrix
    times.stop()
    launched_s = clock.now_s() - begun
    assert times.on_gpu and times.seconds() > launched_s
    assert times.seconds() <= clock.now_s() - begun
