"""I8: something moves on, or an error is raised."""

from typing import TYPE_CHECKING

from workbench.errors import IntegrityError

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

PATIENCE_STEPS = 1000  # besides those that computing every known token again, one a step, takes


class Watchdog:
    """Counts steps in which no request got anywhere; loads have deadlines of their own."""

    def __init__(self) -> None:
        self.num_idle_steps = 0
        self._seen = (0, 0, 0)

    def observe(self, engine: "Engine") -> None:
        """After a step; IntegrityError once too many in a row brought nobody further.

        Recomputed tokens are no progress: preempting in a circle computes for ever.
        """
        metrics = engine.metrics
        seen = (
            metrics.computed_tokens - metrics.recomputed_tokens,
            engine.config_version,
            len(engine.requests),
        )
        if seen != self._seen or not engine.requests or engine.fetcher.num_pending:
            self._seen, self.num_idle_steps = seen, 0
            return
        self.num_idle_steps += 1
        if self.num_idle_steps < PATIENCE_STEPS:
            return
        known = sum(request.num_tokens for request in engine.requests.values())
        if self.num_idle_steps >= PATIENCE_STEPS + known:
            first = next(iter(engine.requests.values()))
            raise IntegrityError(
                f"I8: no request moved on in {self.num_idle_steps} steps; request "
                f"{first.request_id}, the oldest, is {first.status.value}: restart the engine"
            )
