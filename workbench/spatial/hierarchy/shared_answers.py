"""What a shared medium said of pages that others may have put there: kept for a while, then asked.

unknown(keys) ─► a probe each, in the tier's thread ─► adopted: the tier's entry from now on
                                                    └► absent: believed for `KNOWN_FOR_S`
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from workbench.cache.keys import PrivateKey, TierKey
from workbench.clock import Clock
from workbench.spatial.hierarchy.entries import Entry, EntryTable
from workbench.spatial.hierarchy.io_thread import PROBE, IoThread, Op, Outcome
from workbench.spatial.hierarchy.medium import PageRecord, encode_key
from workbench.spatial.hierarchy.patience import Health

KNOWN_FOR_S = 5.0  # how long "not here" holds (SGLang's file backend: TTL 5 s)
MOST_ABSENT = 65_536


class AskingTier(Protocol):
    """What the answers need of their tier."""

    clock: Clock
    table: EntryTable
    io: IoThread
    health: Health

    @property
    def shared(self) -> bool:
        """Whether others put and remove pages too."""

    @property
    def readable(self) -> bool:
        """Whether it can be asked now."""

    def adopt(self, record: PageRecord, real_bytes: int = 0) -> Entry | None:
        """Index a page that lies on the medium."""


class SharedAnswers:
    """Questions that are due and answers that hold; the engine's thread only."""

    def __init__(self, tier: AskingTier) -> None:
        self._tier = tier
        self._absent: dict[bytes, float] = {}  # key -> until when the answer holds
        self._asked: set[bytes] = set()

    def unknown(self, keys: Sequence[TierKey]) -> bool:
        """Ask for those keys nobody knows of here; whether an answer is due."""
        tier = self._tier
        if not tier.shared or not tier.readable:
            return False
        waiting, now_s = False, tier.clock.now_s()
        for key in keys:
            if isinstance(key, PrivateKey) or tier.table.get(key) is not None:
                continue
            encoded = encode_key(key)
            if self._absent.get(encoded, -1.0) > now_s:
                continue
            waiting = True
            if encoded not in self._asked:
                self._asked.add(encoded)
                tier.io.queue(Op(PROBE, encoded, encoded), self._answer(encoded))
        return waiting

    def written(self, key: bytes) -> None:
        """A key is being put there: that it was absent holds no longer."""
        self._absent.pop(key, None)

    def forget(self) -> None:
        """Believe no answer that was given or is due."""
        self._absent.clear()
        self._asked.clear()

    def _answer(self, key: bytes) -> Callable[[Outcome], None]:
        def answered(outcome: Outcome) -> None:
            if key not in self._asked:  # everything was forgotten meanwhile
                return
            self._asked.discard(key)
            if outcome.reason:
                self._tier.health.fault(outcome.reason)
            if outcome.record is None or self._tier.adopt(outcome.record) is None:
                if len(self._absent) >= MOST_ABSENT:
                    self._absent.clear()
                self._absent[key] = self._tier.clock.now_s() + KNOWN_FOR_S

        return answered
