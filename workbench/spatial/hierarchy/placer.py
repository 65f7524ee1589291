"""Asks the placement policy, and stands in for it where it fails: serving goes on in LRU order.

A user's policy may raise or answer nonsense. That is a fault, counted under `policy` at the tier
whose page was in question, told of once, and that one decision is LRU's.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.cache.keys import TierKey
from workbench.cache.placement import PlacementPolicy, StoredPage, TierState, faded
from workbench.spatial.hierarchy.counters import TierCounters
from workbench.spatial.hierarchy.entries import Entry, EntryTable
from workbench.spatial.hierarchy.placement import LruPlacement
from workbench.spatial.hierarchy.slow_tier import SlowTier

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.mover import Mover

FAULT = "policy"


def nobody_waits() -> Mapping[TierKey, int]:
    """What is left to compute of waiting requests, where there is no queue."""
    return {}


class Placer:
    """Between the tiers and their policy; the engine's thread only.

    `recompute_s(num_tokens)`: measured seconds to compute so many, None before any measurement.
    `remaining()`: tokens that waiting requests would lose with a page, asked once a step at most.
    """

    def __init__(self, mover: "Mover") -> None:
        self._mover = mover
        self.policy: PlacementPolicy = LruPlacement()
        self.recompute_s: Callable[[int], float | None] = lambda num_tokens: None
        self.remaining: Callable[[], Mapping[TierKey, int]] = nobody_waits
        self.block_tokens = 0  # of the newest page whose tokens are known
        self.needs_mass = False
        self.num_faults = 0
        self._told = False
        self._waiting: Mapping[TierKey, int] | None = None

    def choose(self, policy: PlacementPolicy) -> None:
        """Ask this policy from now on."""
        self.policy, self._told = policy, False
        self.needs_mass = getattr(policy, "needs_mass", False) is True
        by_recency = getattr(policy, "by_recency", False) is True
        for at, table in enumerate(self._mover.tables):
            table.order = None if by_recency else functools.partial(self.order, at)

    def begin_step(self) -> None:
        """The queue may be another one now."""
        self._waiting = None

    def order(self, at: int, entries: list[Entry]) -> list[Entry]:
        """Entries of the `at`-th tier, the one that leaves first in front; equals by recency."""
        tiers = [self._state(number) for number in range(at, len(self._mover.tables))]
        here, below = tiers[0], [tier for tier in tiers[1:] if tier.capacity_bytes]
        try:
            ranks = [_number(self.policy.keep(self._page(entry), here, below)) for entry in entries]
        except Exception as error:
            self._fault(at, entries[0], error)
            ranks = [0.0] * len(entries)
        pairs = sorted(
            zip(ranks, entries, strict=True), key=lambda pair: (pair[0], pair[1].last_used)
        )
        return [entry for _, entry in pairs]

    def takers(self, of: Entry, tiers: Sequence[SlowTier]) -> list[SlowTier]:
        """Which of these lower tiers may get a page, best first."""
        on = {tier.name: tier for tier in tiers if tier.on}
        if not on or type(self.policy) is LruPlacement:
            return list(on.values())
        numbers = {table.name: at for at, table in enumerate(self._mover.tables)}
        below = [self._state(numbers[name]) for name in on]
        try:
            names = list(self.policy.takers(self._page(of), below))
            return [on[name] for name in dict.fromkeys(names)]
        except Exception as error:
            self._fault(numbers[tiers[0].name], of, error)
            return list(on.values())

    # ---- what a policy is shown

    def _page(self, entry: Entry) -> StoredPage:
        facts, now_s = entry.facts, self._mover.clock.now_s()
        if self._waiting is None:
            self._waiting = self.remaining()
        idle_s, remaining = max(0.0, now_s - facts.used_s), self._waiting.get(entry.key, 0)
        num_tokens = facts.num_tokens or self.block_tokens
        return StoredPage(
            entry.key,
            entry.page_bytes,
            entry.charged_bytes or entry.page_bytes,
            num_tokens,
            facts.first_token,
            facts.mass,
            faded(facts.uses, idle_s),
            idle_s,
            remaining,
            self.recompute_s(num_tokens),
            self.recompute_s(remaining),
        )

    def _state(self, at: int) -> TierState:
        mover = self._mover
        table, tier = mover.tables[at], mover.ladder.tiers[at - 1] if at else None
        counters: TierCounters = mover.counters[table.name]
        bucket = mover.dram_bucket if tier is None else tier.bucket
        slowed = 1.0 / (bucket.mb_s * 1e6) if bucket.on else 0.0
        load, store = counters.load_fit, counters.store_fit
        backlog = 0 if tier is None else tier.io.backlog_bytes
        load_s, store_s = (max(fit.seconds_per_byte, slowed) for fit in (load, store))
        backlog_s = max(backlog * load_s, bucket.wait_s(mover.clock.now_s()))
        return TierState(
            table.name,
            table.capacity_bytes,
            table.used_bytes,
            load.latency_s,
            load_s,
            store.latency_s,
            store_s,
            backlog_s,
        )

    def _fault(self, at: int, entry: Entry, error: Exception) -> None:
        table: EntryTable = self._mover.tables[at]
        self.num_faults += 1
        self._mover.counters[table.name].faults[FAULT] += 1
        if not self._told:
            self._told = True
            reason = f"{FAULT}: {type(error).__name__}"
            data = {"tier": table.name, "reason": reason, "num_bytes": entry.page_bytes}
            self._mover.emit_entry("tier_fault", entry, data)


def _number(value: float) -> float:
    """A rank that can be compared; raises for anything else."""
    number = float(value)
    if math.isnan(number):
        raise ValueError("keep gave no number")
    return number
