"""Leaves what fails alone for a while, and tries it again."""

from workbench.clock import Clock
from workbench.spatial.hierarchy.counters import FAILED_AFTER

RETRY_S = 2.0  # after the last fault: what works again is back at its full rate within 5 s


class Patience:
    """Counts faults in a row of one kind of operation; after FAILED_AFTER it is not tried."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_failed = 0
        self._retry_at_s = 0.0

    @property
    def ready(self) -> bool:
        """Whether to try now; once it is time again, all may try until the next fault."""
        return self._num_failed < FAILED_AFTER or self._clock.now_s() >= self._retry_at_s

    def failed(self) -> None:
        """Count one fault."""
        self._num_failed += 1
        self._retry_at_s = self._clock.now_s() + RETRY_S

    def worked(self) -> None:
        """Forget the faults."""
        self._num_failed = 0
