"""Leaves what fails alone for a while, and tries it again."""

from workbench.clock import Clock
from workbench.spatial.hierarchy.counters import FAILED_AFTER, TierCounters

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


class Health:
    """What became of a tier's reads and writes: counted, and each kind left alone if it fails."""

    def __init__(self, clock: Clock, counters: TierCounters) -> None:
        self._counters = counters
        self._reads, self._writes = Patience(clock), Patience(clock)

    @property
    def reads(self) -> bool:
        """Whether reads may be tried."""
        return self._reads.ready

    @property
    def writes(self) -> bool:
        """Whether writes may be tried."""
        return self._writes.ready

    def fault(self, reason: str, writing: bool = False) -> None:
        """Count a fault; after so many in a row that kind is left alone for a while."""
        self._counters.fault(reason)
        if reason != "no_room":
            (self._writes if writing else self._reads).failed()

    def stored(self, num_bytes: int, seconds: float) -> None:
        """Count a write that went well."""
        self._writes.worked()
        self._counters.stored(num_bytes, seconds, learn=False)

    def loaded(self, num_bytes: int, seconds: float) -> None:
        """Count a read that went well."""
        self._reads.worked()
        self._counters.loaded(num_bytes, seconds, learn=False)

    def handed_down(self) -> None:
        """Count a read for the tier below."""
        self._reads.worked()
        self._counters.handed_down()

    def reopened(self) -> None:
        """Another medium is there: what failed was not this one."""
        self._counters.reopened()
        self._reads.worked()
        self._writes.worked()

    def mended(self) -> None:
        """What was wrong with the medium has been put right: it is tried at once."""
        self._reads.worked()
        self._writes.worked()
        self._counters.num_failed = 0
