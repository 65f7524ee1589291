"""Tells of blocks that move between HBM and the tiers, as their owners report it."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.cache.keys import TierKey, key_text
from workbench.cache.prefix_index import Row
from workbench.request import Request

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


class Moves:
    """What pool, fetcher and hierarchy call when bytes go down, come up or fail to."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def before_evict(self, row: Row) -> None:
        """A row is about to leave HBM, its bytes still intact: offer it to the tiers."""
        engine = self._engine
        to_tier = ""
        if engine.fetcher.demote(row):
            to_tier = engine.hierarchy.first_tier
            engine.frames.tiers.notes.left_hbm(row)
        engine.log.journeys.note(row.key.hex(), "left", "G1", request_id=engine.scheduler.serving)
        engine.metrics.evictions.add(1)
        engine.log.tell(
            "evict",
            num_blocks=len(row.blocks),
            from_tier="G1",
            to_tier=to_tier,
            for_request_id=engine.scheduler.serving,
        )

    def published(self, request: Request, first: int) -> None:
        """Full blocks from `first` on can be found now: written through, they go down at once.

        Those that a tier holds already are only touched there.
        """
        engine = self._engine
        if engine.config.tiers.write != "through" or not engine.fetcher.enabled:
            return
        blocks = engine.stack.manager.requests[request.request_id]
        for page in range(first, blocks.num_hashed):
            row = engine.stack.pool.row_of[int(blocks.row_at(page)[0])]
            if row is not None and engine.fetcher.demote(row):
                engine.frames.tiers.notes.left_hbm(row)

    def hit(self, rows: Sequence[Row]) -> None:
        """A request found rows in HBM: `selective` writes them down at the hit that is asked for.

        Source: SGLang's write_through_selective, which counts hits of the upper tier.
        """
        engine, tiers = self._engine, self._engine.config.tiers
        for row in rows:
            row.num_hits += 1
            due = tiers.write == "selective" and row.num_hits == tiers.write_hits
            if due and engine.fetcher.demote(row):
                engine.frames.tiers.notes.left_hbm(row)

    def loaded(self, request: Request, tiers: dict[TierKey, str], seconds: float) -> None:
        """Pages of a request came up, each from its tier."""
        log = self._engine.log
        for key, tier in tiers.items():
            detail = f"{seconds * 1e3:.1f} ms"
            log.journeys.note(
                key_text(key), "fetched", tier, request_id=request.request_id, detail=detail
            )
        for tier, pages in Counter(tiers.values()).items():
            log.tell(
                "load",
                request.request_id,
                num_blocks=pages,
                tier=tier,
                num_tokens=pages * self._engine.config.cache.block_size,
                milliseconds=seconds * 1e3,
            )

    def below(self, kind: str, data: dict[str, Any]) -> None:
        """Something happened in a tier: `store`, `evict` or `tier_fault`.

        And `readable` or `unreadable`: which keys it has, whatever the reason.
        """
        log = self._engine.log
        if kind == "readable":
            log.kv.page_stored(data["tier"], data["key"], data["facts"])
        elif kind == "unreadable":
            log.kv.page_removed(data["tier"], data["key"])
        elif kind == "tier_fault":
            log.journeys.note(data["key"], "fault", data["tier"], detail=data["reason"])
            log.tell(kind, tier=data["tier"], reason=data["reason"])
        elif kind == "store":
            log.journeys.note(data["key"], "stored", data["tier"])
            log.tell(kind, tier=data["tier"], num_blocks=1, num_bytes=data["num_bytes"])
        elif kind == "evict":
            log.journeys.note(data["key"], "left", data["tier"])
            tiers = {"from_tier": data["tier"], "to_tier": data["to_tier"]}
            log.tell(kind, num_blocks=1, for_request_id="", **tiers)
