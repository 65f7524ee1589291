"""How long a part of a step takes: by the clock on a CPU, by events of the stream on a GPU.

A launch on a GPU returns before it runs, so that the clock around it would time the launch alone.
"""

import torch

from workbench.clock import Clock


class PartTimes:
    """The sum of all spans between `start` and `stop` of one part, on one device."""

    def __init__(self, clock: Clock, device: str) -> None:
        self._clock = clock
        self.on_gpu = torch.device(device).type == "cuda"
        self._begun_s = self._sum_s = 0.0
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # not summed yet

    def start(self) -> None:
        """A span begins."""
        if self.on_gpu:
            self._spans.append((_event(), _event()))
            self._spans[-1][0].record()
        else:
            self._begun_s = self._clock.now_s()

    def stop(self) -> None:
        """The span ends."""
        if self.on_gpu:
            self._spans[-1][1].record()
        else:
            self._sum_s += self._clock.now_s() - self._begun_s

    def seconds(self) -> float:
        """The sum; on a GPU it waits for the last span to have run, so ask at the step's end."""
        for begun, ended in self._spans:
            ended.synchronize()
            self._sum_s += begun.elapsed_time(ended) / 1e3
        self._spans.clear()
        return self._sum_s


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
