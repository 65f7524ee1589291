"""Whether a fetch pays: against computing again, and against what others would wait for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.cache.keys import PrefixKey
from workbench.cache.tier import KVHierarchy
from workbench.temporal.scheduling.loads import FetchCounters


@dataclass
class Worth:
    """Compares predicted times; `recompute_s(n)` is None before anything was measured."""

    hierarchy: KVHierarchy
    recompute_s: Callable[[int], float | None]
    counters: FetchCounters
    gate: bool = True

    def fetching(self, keys: Sequence[PrefixKey], num_tokens: int) -> bool:
        """Whether fetching is predicted to be faster than computing so many tokens (decision 7)."""
        if not self.gate:
            return True
        load_s, recompute_s = (
            self.hierarchy.lookups.estimate_load_s(keys),
            self.recompute_s(num_tokens),
        )
        self.counters.last_recompute_s = recompute_s or 0.0
        worth = recompute_s is None or load_s < recompute_s
        self.counters.num_gated += not worth
        return worth

    def overlapping(self, keys: Sequence[PrefixKey], step_tokens: int | None) -> bool:
        """Whether a step of so many tokens computes as long as others in it would wait.

        None: nobody else is part of the step.
        """
        if step_tokens is None:
            return True
        compute_s = self.recompute_s(step_tokens)
        return compute_s is not None and self.hierarchy.lookups.estimate_load_s(keys) <= compute_s
