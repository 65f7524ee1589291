"""What can be found where, as vLLM tells it: the KV events of one engine, in batches by step.

    G1 index: row in, row out ────────────► BlockStored, BlockRemoved on medium GPU
    G2, G3 ...: page readable, page gone ─► the same on CPU (G2) or STORAGE (the tiers below)

Media and their meaning: vLLM 0.32 `distributed/kv_events.py`. Its STORAGE is one medium; which of
our tiers it is stands in `ownership`, so that a block in two of them leaves the right one.
Private pages are nobody else's and are not told.
"""

from collections.abc import Callable, Iterable
from typing import Any

from workbench.cache.keys import TierKey
from workbench.cache.placement import PageFacts
from workbench.cache.prefix_index import Row
from workbench.clock import Clock
from workbench.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

OnKvEvents = Callable[[KVEventBatch], None]
GPU, CPU, STORAGE = "GPU", "CPU", "STORAGE"


def medium_of(tier: str) -> tuple[str, str | None]:
    """(medium, ownership) of one of our tiers: G1, G2, G3, G3.5, G4."""
    return {"G1": (GPU, None), "G2": (CPU, None)}.get(tier, (STORAGE, tier))


class KvStream:
    """Gathers the events of a step; nothing is gathered while nobody listens.

    The stream begins with AllBlocksCleared: what a subscriber still knows of an earlier engine is
    void (vLLM's numbers just start over at 0).
    """

    def __init__(self, clock: Clock, listener: OnKvEvents | None) -> None:
        self._clock = clock
        self._listener = listener
        self._events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        self._add(AllBlocksCleared())

    def row_stored(self, row: Row) -> None:
        """A row became visible in HBM."""
        self._store("G1", row.key, row.parent_key, row.token_ids)

    def rows_removed(self, rows: Iterable[Row]) -> None:
        """Rows are no longer visible in HBM; tiers keep what they have of them."""
        keys = [row.key for row in rows]
        if keys:
            self._add(BlockRemoved(block_hashes=list(keys), medium=GPU))

    def page_stored(self, tier: str, key: TierKey, facts: PageFacts) -> None:
        """A page can be read from a tier below HBM.

        Of one that an earlier process or another engine left there nothing but the key is known:
        then the event has no tokens and a block size of 0, as vLLM's own has. What a lossy codec
        made of a block has a hash of its own and the parent of the block.
        """
        if isinstance(key, bytes):
            self._store(tier, key, facts.parent_key, facts.token_ids)

    def page_removed(self, tier: str, key: TierKey) -> None:
        """A page can no longer be read from a tier below HBM."""
        if isinstance(key, bytes):
            medium, ownership = medium_of(tier)
            self._add(BlockRemoved(block_hashes=[key], medium=medium, ownership=ownership))

    def flush(self) -> None:
        """Hand what has been gathered to the listener as one batch."""
        if self._events and self._listener is not None:
            events, self._events = self._events, []
            self._listener(KVEventBatch(self._clock.wall_s(), events, 0))

    def _store(
        self, tier: str, key: bytes, parent_key: bytes | None, token_ids: tuple[int, ...]
    ) -> None:
        medium, ownership = medium_of(tier)
        self._add(
            BlockStored(
                block_hashes=[key],
                parent_block_hash=parent_key,
                token_ids=list(token_ids),
                block_size=len(token_ids),
                medium=medium,
                ownership=ownership,
            )
        )

    def _add(self, event: Any) -> None:
        if self._listener is not None:
            self._events.append(event)
