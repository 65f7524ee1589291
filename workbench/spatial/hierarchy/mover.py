"""Moves pages between DRAM and the tiers below: stores, demotions, promotions.

    store ──► G2 DRAM ──LRU victim──► staging ──► G3 disk ──► G3.5 pool ──► G4 objects
                 ▲                                   │            │             │
                 └───────── verified, from the first tier that has the page ────┘

A page promoted from a tier stays there unless `tiers.inclusive` says otherwise, so that evicting it
again from G2 costs no write. A victim moves to staging by handing over its buffer, without a copy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from workbench.cache.codec import CodedRow
from workbench.cache.keys import TierKey, key_text
from workbench.cache.page_copy import copy_hashed, slice_checksums
from workbench.cache.placement import PageFacts
from workbench.clock import Clock
from workbench.config import TierSettings
from workbench.spatial.hierarchy.bandwidth import TransferFit
from workbench.spatial.hierarchy.counters import TierCounters
from workbench.spatial.hierarchy.entries import Entry, EntryTable, State
from workbench.spatial.hierarchy.flows import HBM, Flows
from workbench.spatial.hierarchy.held import HeldCompletions
from workbench.spatial.hierarchy.host_memory import HostMemory, HostPins, Staging
from workbench.spatial.hierarchy.ladder import SLOW, Ladder
from workbench.spatial.hierarchy.pins import Pins
from workbench.spatial.hierarchy.placer import Placer
from workbench.spatial.hierarchy.slow_tier import SlowTier
from workbench.spatial.hierarchy.store_holds import StoreHolds
from workbench.spatial.hierarchy.throttle import TokenBucket

OnEvent = Callable[[str, dict[str, Any]], None]
G2 = "G2"
TIERS_BELOW = (G2, *SLOW)  # HBM, which is G1


class Mover:
    """Owns DRAM, staging and the ladder, and what moves between them; the engine's thread only."""

    def __init__(self, clock: Clock, on_event: OnEvent, pins: HostPins | None = None) -> None:
        self.clock = clock
        self.emit = on_event
        self.settings = TierSettings()
        self.memory = HostMemory(0, pins)
        self.staging = Staging(self.memory, 0)
        self.pins = Pins(clock.now_s)
        self.dram = EntryTable(G2, 0, self._release_dram, self.pins, self.watch)
        self.dram_bucket = TokenBucket(0.0)
        self.counters = {name: TierCounters() for name in TIERS_BELOW}
        self.copy_fit = TransferFit()
        self.flows = Flows(clock.now_s)
        self.kept: dict[int, Entry] = {}  # by generation: pinned in DRAM until they are released
        self.held = HeldCompletions(clock)
        self._generation = 0
        self.ladder = Ladder(self)
        self.placer = Placer(self)
        self.store_holds = StoreHolds(self)

    @property
    def tables(self) -> tuple[EntryTable, ...]:
        """What each tier holds, from DRAM down."""
        return self.dram, *(tier.table for tier in self.ladder.tiers)

    def next_generation(self) -> int:
        """A number no entry had before: it guards late completions and removals."""
        self._generation += 1
        return self._generation

    def advance(self) -> None:
        """Let finished transfers and throttled completions take effect; never blocks."""
        self.ladder.drain()
        self.held.advance()
        if self.pins.expire():
            self.show_pins()
        self.store_holds.advance()
        watermark, ratio = self.settings.watermark, self.settings.evict_ratio
        self.trim_dram(self.dram.limit(watermark, ratio))
        self.ladder.trim(watermark, ratio)

    def store(
        self,
        key: TierKey,
        page: np.ndarray,
        num_slices: int,
        coded: CodedRow | None,
        facts: PageFacts,
    ) -> bool:
        """Copy a page into the first tier that takes it."""
        start_s = self.clock.now_s()
        entry = self.new_dram_entry(key, page.nbytes, (), coded, facts)
        if entry is None:
            return self._store_below(key, page, slice_checksums(page, num_slices), coded, facts)
        assert entry.buffer is not None
        entry.checksums = copy_hashed(page, entry.buffer, num_slices)
        seconds = self.clock.now_s() - start_s
        self.counters[G2].stored(page.nbytes, seconds)
        self.flows.moved(HBM, G2, page.nbytes)
        ready_at_s = self.dram_bucket.reserve(page.nbytes, start_s)
        self.held.hold(G2, ready_at_s, lambda: self.publish(G2, entry))
        entry.num_hits = facts.num_hits
        if self.settings.write == "through" or self._often_hit(facts.num_hits):
            self.ladder.copy_down(entry)
        return True

    def hit(self, entry: Entry) -> None:
        """A page of DRAM's is read: `selective` copies it down at the hit that is asked for."""
        entry.num_hits += 1
        self.seen(entry)
        if self.settings.write == "selective" and entry.num_hits == self.settings.write_hits:
            self.ladder.copy_down(entry)

    def seen(self, entry: Entry) -> None:
        """A page was stored, or asked for and found."""
        self.ladder.admission.seen(entry.key)
        entry.facts.use(self.clock.now_s())

    def renewed(self, key: TierKey, facts: PageFacts) -> None:
        """A page that is held already comes from HBM again, with what it met there."""
        for table in self.tables:
            entry = table.get(key)
            if entry is not None:
                entry.facts.renew(facts)
                entry.facts.use(self.clock.now_s())
                break
        held = self.dram.get(key)
        if held is not None and self._often_hit(facts.num_hits):
            held.num_hits = max(held.num_hits, facts.num_hits)
            self.ladder.copy_down(held)

    def _often_hit(self, num_hits: int) -> bool:
        """Whether `selective` writes a page down that was hit so often in HBM."""
        return self.settings.write == "selective" and num_hits >= self.settings.write_hits

    def publish(self, tier: str, entry: Entry) -> None:
        """Make a written entry readable."""
        next(table for table in self.tables if table.name == tier).publish(entry)
        self.store_holds.changed(entry.key)
        if not entry.removed:
            self.emit_entry("store", entry, {"tier": tier, "num_bytes": entry.page_bytes})

    def watch(self, tier: str, entry: Entry, readable: bool) -> None:
        """Tell which keys a tier has."""
        data = {"tier": tier, "key": entry.key, "facts": entry.facts}
        self.emit("readable" if readable else "unreadable", data)

    def emit_entry(self, kind: str, entry: Entry, data: dict[str, Any]) -> None:
        """Tell about something that happened to an entry."""
        self.emit(kind, {"key": key_text(entry.key)} | data)

    def new_dram_entry(
        self,
        key: TierKey,
        num_bytes: int,
        checksums: tuple[int, ...],
        coded: CodedRow | None = None,
        facts: PageFacts | None = None,
    ) -> Entry | None:
        """A WRITING entry with a buffer in DRAM, or None if no room can be made."""
        victims = self.dram.victims(num_bytes)
        if victims is None:
            return None
        for victim in victims:
            self.evict_dram(victim)
        entry = Entry(key, num_bytes, num_bytes, checksums, self.next_generation(), State.WRITING)
        entry.coded, entry.facts = coded, facts or entry.facts
        entry.buffer = self.memory.take(num_bytes)
        self.dram.add(entry)
        return entry

    def evict_dram(self, victim: Entry) -> bool:
        """Take an unpinned entry out of DRAM, to a tier that takes it; True if it lives on."""
        holder = self.ladder.holder(victim)
        if holder is not None:
            self.dram.remove(victim)
        else:
            holder = self._demote(victim)
        first = self.ladder.first_on()
        if holder is None and first is not None:
            first.counters.num_dropped_stores += 1
        self.counters[G2].num_evictions += 1
        to = holder.name if holder is not None else ""
        data = {"tier": G2, "num_bytes": victim.page_bytes, "to_tier": to, "demoted": bool(to)}
        self.emit_entry("evict", victim, data)
        return holder is not None

    def trim_dram(self, limit_bytes: int | None = None) -> tuple[int, int]:
        """Evict until DRAM is within its cap (or a limit); returns (evicted, of which live on)."""
        evicted = demoted = 0
        for entry in self.dram.excess(limit_bytes):
            evicted += 1
            demoted += self.evict_dram(entry)
        return evicted, demoted

    def fault(self, tier: str, reason: str, entry: Entry, *, writing: bool = False) -> None:
        """Count a fault and tell about it; a page that a shared medium evicted is a miss."""
        below = next((each for each in self.ladder.tiers if each.name == tier), None)
        if reason == "gone" and below is not None and below.shared:
            self.counters[tier].gone()
            return
        if below is not None:
            below.health.fault(reason, writing)
        else:
            self.counters[tier].fault(reason)
        data = {"tier": tier, "reason": reason, "num_bytes": entry.page_bytes}
        self.emit_entry("tier_fault", entry, data)

    def show_pins(self) -> None:
        """What is held has changed: lists of entries are drawn anew."""
        for table in self.tables:
            table.version += 1

    def close(self) -> None:
        """End all transfers and the threads, and give every byte back."""
        self.ladder.close()
        for entry in self.dram.all_entries():
            self.dram.remove(entry)
        self.memory.set_limit(0)

    def _demote(self, victim: Entry) -> SlowTier | None:
        """Move a victim's buffer to staging and on to the first tier that takes it."""
        buffer = victim.buffer
        if buffer is None or not self.staging.adopt(buffer):
            self.dram.remove(victim)
            return None
        target = self.ladder.reserve(victim)
        if target is None:
            self.staging.disown(buffer)
            self.dram.remove(victim)
            return None
        victim.buffer = None  # the buffer itself moves to staging
        self.dram.remove(victim)
        self.ladder.write(*target, buffer, lambda: self.staging.give(buffer), G2)
        return target[0]

    def _store_below(
        self,
        key: TierKey,
        page: np.ndarray,
        checksums: tuple[int, ...],
        coded: CodedRow | None,
        facts: PageFacts,
    ) -> bool:
        given = Entry(key, page.nbytes, 0, checksums, 0, State.WRITING, coded=coded, facts=facts)
        holder = self.ladder.holder(given)
        if holder is not None:  # as a lossy codec left it
            held = holder.table.get(holder.edge.key_of(given))
            if held is not None:
                holder.table.touch(held)
            return True
        buffer = self.staging.take(page.nbytes)
        target = self.ladder.reserve(given) if buffer is not None else None
        if buffer is not None and target is not None:
            buffer[:] = page
            self.ladder.write(*target, buffer, lambda: self.staging.give(buffer), HBM)
            return True
        if buffer is not None:
            self.staging.give(buffer)
        for tier, on in ((G2, self.dram.capacity_bytes > 0), *self._slow_on()):
            self.counters[tier].num_dropped_stores += on
        return False

    def _slow_on(self) -> list[tuple[str, bool]]:
        return [(tier.name, tier.on) for tier in self.ladder.tiers]

    def _release_dram(self, entry: Entry) -> None:
        if entry.buffer is not None:
            self.memory.give(entry.buffer)
            entry.buffer = None
