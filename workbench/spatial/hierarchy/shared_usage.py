"""What a shared store says of itself: pages under a lease, held ones, and what went by itself."""

from workbench.spatial.hierarchy.io_thread import Outcome
from workbench.spatial.hierarchy.shared_store import SharedStoreClient
from workbench.spatial.hierarchy.shared_store_protocol import Usage
from workbench.spatial.hierarchy.slow_tier import SlowTier


class SharedUsage:
    """The last answer of a tier's store; each look asks it anew, in the tier's own thread."""

    def __init__(self, tier: SlowTier) -> None:
        self._tier = tier
        self._store: SharedStoreClient | None = None  # that the answer is of
        self._last: Usage | None = None
        self._asked = False

    def look(self) -> Usage | None:
        """What is known now; None before the first answer, and where the tier is no such store."""
        store = self._tier.medium if isinstance(self._tier.medium, SharedStoreClient) else None
        if store is not self._store:
            self._store, self._last = store, None
        if store is not None and not self._asked:
            self._asked = True
            self._tier.io.submit(lambda: self._ask(store), self._answered)
        return self._last

    def _ask(self, store: SharedStoreClient) -> Outcome:
        usage = store.usage()
        if store is self._store:
            self._last = usage
        return Outcome()

    def _answered(self, outcome: Outcome) -> None:
        self._asked = False
