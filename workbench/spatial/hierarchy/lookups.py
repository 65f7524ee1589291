"""What the tiers know of a key: whether it can be loaded, and how long that would take."""

import math
from collections.abc import Iterator, Sequence

from workbench.cache.keys import TierKey
from workbench.cache.tier import Lookup
from workbench.spatial.hierarchy.entries import State
from workbench.spatial.hierarchy.mover import G2, Mover
from workbench.spatial.hierarchy.slow_tier import SlowTier
from workbench.spatial.hierarchy.throttle import paced_s


class Lookups:
    """Answers for all tiers together; the engine's thread only, and never blocking on I/O."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    def lookup(self, key: TierKey) -> Lookup:
        """Whether a key can be loaded; never blocks on I/O, and counts nothing.

        Where a shared medium has not said yet whether it has the key, the answer is RETRY.
        """
        best = Lookup.MISS
        for _, answer in self._asked(key):
            if answer is Lookup.HIT:
                return answer
            best = answer if best is Lookup.MISS else best
        return best

    def count(self, keys: Sequence[TierKey]) -> None:
        """Count one lookup of each key: a hit where it lies, a miss in each tier asked before.

        What cannot be read yet is a miss: whoever asked goes on without it.
        """
        for key in keys:
            for name, answer in self._asked(key):
                counters = self._mover.counters[name]
                if answer is Lookup.HIT:
                    counters.num_hits += 1
                    break
                counters.num_misses += 1

    def know(self, keys: Sequence[TierKey]) -> bool:
        """Whether all that can be known of these keys is known; asks shared media what is not."""
        dram = self._mover.dram
        rest = [key for key in keys if dram.get(key) is None]
        for tier in self._mover.ladder.tiers:
            rest = [key for key in rest if tier.table.get(key) is None]
        waiting = [tier.answers.unknown(rest) for tier in self._mover.ladder.tiers]  # each is asked
        return not any(waiting)

    def num_at_hand(self, keys: Sequence[TierKey]) -> int:
        """How many leading keys lie in DRAM now."""
        for at, key in enumerate(keys):
            entry = self._mover.dram.get(key)
            if entry is None or entry.state is not State.READY:
                return at
        return len(keys)

    def masses_below(self, keys: Sequence[TierKey]) -> list[float | None]:
        """Attention mass of each key that only slow tiers have; None for all others."""
        found: list[float | None] = []
        for key in keys:
            held = self._mover.dram.get(key) is None and self._mover.ladder.source(key)
            found.append(held[1].facts.mass if held else None)
        return found

    def estimate_load_s(self, keys: Sequence[TierKey]) -> float:
        """Predicted seconds to load these keys from where they lie now, and to copy them up.

        Infinite if a key lies nowhere. Counts what is queued before them and the throttles; the
        tiers' threads read at the same time, so that the slowest of them counts.
        """
        mover = self._mover
        sizes: dict[str, list[int]] = {}
        for key in keys:
            entry = mover.dram.get(key)
            found = None if entry is not None else mover.ladder.holding(key)
            if entry is None and found is None:
                return math.inf
            name, held = (G2, entry) if found is None else (found[0].name, found[1])
            sizes.setdefault(name, []).append(held.page_bytes if held is not None else 0)
        total = sum(map(sum, sizes.values()))
        total_s = mover.copy_fit.predict_s(total, len(keys))
        if G2 in sizes:
            bucket, load_fit = mover.dram_bucket, mover.counters[G2].load_fit
            total_s += paced_s(load_fit, bucket, sizes[G2], 0, mover.clock.now_s())
        slow = [tier for tier in mover.ladder.tiers if tier.name in sizes]
        return total_s + max((tier.estimate_s(sizes[tier.name]) for tier in slow), default=0.0)

    def _has_room(self, page_bytes: int) -> bool:
        mover = self._mover
        return mover.staging.fits(page_bytes) or mover.dram.has_room(page_bytes)

    def _never_fits(self, page_bytes: int) -> bool:
        mover = self._mover
        return page_bytes > max(mover.staging.capacity_bytes, mover.dram.capacity_bytes)

    def _asked(self, key: TierKey) -> Iterator[tuple[str, Lookup]]:
        """What each tier that is on says of a key, from DRAM down, until DRAM has it."""
        dram = self._mover.dram
        entry = dram.get(key)
        if entry is not None:
            pending = entry.state is State.WRITING
            yield G2, Lookup.HIT_PENDING if pending else Lookup.HIT
            return
        if dram.capacity_bytes:
            yield G2, Lookup.MISS
        for tier in self._mover.ladder.tiers:
            if tier.readable:
                yield tier.name, self._ask(tier, key)

    def _ask(self, tier: SlowTier, key: TierKey) -> Lookup:
        entry = tier.table.get(key)
        if entry is not None and entry.state is State.WRITING:
            return Lookup.HIT_PENDING
        if entry is not None and not self._never_fits(entry.page_bytes):
            if not self._has_room(entry.page_bytes):
                return Lookup.RETRY
            return Lookup.HIT
        return Lookup.RETRY if tier.answers.unknown([key]) else Lookup.MISS
