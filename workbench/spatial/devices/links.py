"""torch.distributed with every byte counted and every second timed.

Each call here is made by every rank, in the same order and equally often in a step, whatever the
rank holds and however few rows it has: a collective behind an `if` leaves the others waiting
(sglang #30760).
"""

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.clock import Clock
from workbench.spatial.devices.report import Traffic

KINDS = ("all_reduce", "send", "all_to_all", "all_to_all_counts")


class Links:
    """One rank's way to the others; with one rank nothing moves and nothing is counted.

    `delay_s` is slept before every step of this rank: a straggler on purpose.
    """

    def __init__(
        self, rank: int, num_ranks: int, clock: Clock, *, device: str = "cpu", delay_s: float = 0.0
    ) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.clock, self.device, self.delay_s = clock, device, delay_s
        self.traffic = {kind: Traffic() for kind in KINDS}

    def open(self, backend: str, store_file: str, timeout_s: float) -> None:
        """Meet the other ranks at a private file; RuntimeError if they do not come in time."""
        if self.num_ranks > 1:
            dist.init_process_group(
                backend,
                init_method=f"file://{store_file}",
                rank=self.rank,
                world_size=self.num_ranks,
                timeout=datetime.timedelta(seconds=timeout_s),
            )

    def close(self) -> None:
        """Leave the others."""
        if self.num_ranks > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def reset(self) -> None:
        """Count from zero again."""
        self.traffic = {kind: Traffic() for kind in KINDS}

    @property
    def seconds(self) -> float:
        """Time in all collectives so far."""
        return sum(traffic.seconds for traffic in self.traffic.values())

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, in place."""
        if self.num_ranks > 1:
            begun = self.clock.now_s()
            dist.all_reduce(x)
            self._count("all_reduce", x.nbytes, begun)
        return x

    def send(self, x: Tensor, to: int) -> Any:
        """Begin to send x; the work's `wait` must come before x changes."""
        begun = self.clock.now_s()
        work = dist.isend(x, to)
        self._count("send", x.nbytes, begun)
        return work

    def receive(self, x: Tensor, source: int) -> Any:
        """Begin to receive into x; pieces of one sender come in the order they were sent."""
        return dist.irecv(x, source)

    def wait(self, work: Any) -> None:
        """Wait for a send or a receive, on the clock of the sends."""
        begun = self.clock.now_s()
        work.wait()
        self._synchronize()
        self.traffic["send"].seconds += self.clock.now_s() - begun

    def exchange_counts(self, counts: Tensor, held: Sequence[int]) -> Tensor:
        """Every rank's counts for this rank: int64 [num_ranks, own], of int64 [sum of held].

        `held` says how many of the counts belong to each rank.
        """
        own = held[self.rank]
        if self.num_ranks == 1:
            return counts.view(1, own)
        begun = self.clock.now_s()
        out = counts.new_empty(self.num_ranks * own)
        dist.all_to_all_single(out, counts, [own] * self.num_ranks, list(held))
        self._count("all_to_all_counts", (len(counts) - own) * counts.element_size(), begun)
        return out.view(self.num_ranks, own)

    def exchange(self, rows: Tensor, give: Sequence[int], take: Sequence[int]) -> Tensor:
        """Rows [sum of give, W] for each rank in turn -> those from each rank [sum of take, W]."""
        if self.num_ranks == 1:
            return rows
        begun = self.clock.now_s()
        out = rows.new_empty(sum(take), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), list(take), list(give))
        leaving = sum(give) - give[self.rank]
        self._count("all_to_all", leaving * rows.shape[1] * rows.element_size(), begun)
        return out

    def _count(self, kind: str, num_bytes: int, begun: float) -> None:
        self._synchronize()
        traffic = self.traffic[kind]
        traffic.calls += 1
        traffic.num_bytes += num_bytes
        traffic.seconds += self.clock.now_s() - begun

    def _synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()  # else a collective on a GPU would seem to take no time
