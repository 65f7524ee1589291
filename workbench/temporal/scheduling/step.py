"""One step of the schedule: what it may take, and what was chosen for it."""

from dataclasses import dataclass, field

from workbench.request import Request


@dataclass
class StepBudget:
    """What one step may still take."""

    num_tokens: int
    num_seqs: int

    def take(self, num_tokens: int) -> None:
        """One more request with so many tokens."""
        self.num_tokens -= num_tokens
        self.num_seqs -= 1

    def give_back(self, num_tokens: int) -> None:
        """A scheduled request was preempted after all."""
        self.num_tokens += num_tokens
        self.num_seqs += 1


@dataclass
class SchedulerOutput:
    """The next batch: each request once, with how many tokens it computes."""

    scheduled: dict[str, tuple[Request, int]] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens over all requests; at most the budget (I6)."""
        return sum(count for _, count in self.scheduled.values())
