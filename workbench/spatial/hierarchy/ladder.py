"""The tiers below DRAM in their order, and how pages go down from one to the next.

    victim of DRAM ──► staging ──► first tier that takes it
    victim of a tier ──► read, verified, deleted there ──► staging ──► next tier that takes it

A victim's room is given away at once: its tier's thread reads and deletes it before the page that
takes its place is written. What no tier takes is gone, which is counted.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.keys import TierKey
from workbench.spatial.hierarchy.admission import Admission, Presence
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.io_thread import Outcome
from workbench.spatial.hierarchy.medium import encode_key
from workbench.spatial.hierarchy.slow_tier import SlowTier

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.mover import Mover

G3, POOL, OBJECTS = "G3", "G3.5", "G4"
SLOW = (G3, POOL, OBJECTS)
WAIT_STEP_S = 0.002  # how often a store that waits looks again


class Ladder:
    """Owns the slow tiers and the traffic between them; the engine's thread only."""

    def __init__(self, mover: "Mover") -> None:
        self._mover = mover
        self.tiers = tuple(
            SlowTier(
                name,
                mover.clock,
                mover.counters[name],
                mover.next_generation,
                mover.pins,
                mover.watch,
            )  # fmt: skip
            for name in SLOW
        )
        self.admission: Admission = Presence()
        self._owed: deque[tuple[SlowTier, Entry]] = deque()  # copies that wait for room to move

    @property
    def num_pending(self) -> int:
        """Transfers of all tiers that have not taken effect."""
        return sum(tier.io.num_pending for tier in self.tiers)

    @property
    def num_held(self) -> int:
        """Transfers that have ended, and that a throttle holds back."""
        return sum(len(tier.bucket) for tier in self.tiers)

    @property
    def backlog_bytes(self) -> int:
        """Bytes queued or moving now."""
        return sum(tier.io.backlog_bytes for tier in self.tiers)

    def first_on(self) -> SlowTier | None:
        """The uppermost tier that is switched on."""
        return next((tier for tier in self.tiers if tier.on), None)

    def holder(self, entry: Entry, below: int = 0) -> SlowTier | None:
        """The first tier that has a page of DRAM's, as it keeps it, from the `below`-th on."""
        for tier in self.tiers[below:]:
            if tier.readable and tier.table.get(tier.edge.key_of(entry)) is not None:
                return tier
        return None

    def holding(self, key: TierKey) -> tuple[SlowTier, Entry] | None:
        """The first tier that has a key, and its entry there, be it readable yet or not."""
        for tier in self.tiers:
            entry = tier.table.get(key)
            if entry is not None and tier.readable:
                return tier, entry
        return None

    def source(self, key: TierKey) -> tuple[SlowTier, Entry] | None:
        """The first tier a key can be read from now."""
        for tier in self.tiers:
            entry = tier.table.get(key)
            if entry is not None and entry.state is State.READY and tier.readable:
                return tier, entry
        return None

    def reserve(self, of: Entry, below: int = 0) -> tuple[SlowTier, Entry] | None:
        """A WRITING entry with its room in the first tier that takes a page; None if none does.

        The placement policy says which tiers are asked, and in which order.
        """
        for tier in self._mover.placer.takers(of, self.tiers[below:]):
            entry = self._entry(self.tiers.index(tier), of)
            if entry is not None:
                return tier, entry
        return None

    def copy_down(self, entry: Entry) -> None:
        """Write a page of DRAM's to every tier that takes it and lacks it; DRAM keeps it.

        A tier that has enough on its way already gets it later, unless DRAM evicts it first.
        """
        self._owed += [(tier, entry) for tier in self.tiers if tier.on]
        self._pay()

    def _pay(self) -> None:
        """Begin the copies that there is room for, in the order in which they were asked for."""
        room = self._mover.staging.capacity_bytes
        for _ in range(len(self._owed)):
            tier, entry = self._owed.popleft()
            much = tier.copying_bytes and tier.copying_bytes + entry.page_bytes > room
            if entry.removed:
                continue
            if much or self._busy(tier):
                self._owed.append((tier, entry))
            else:
                self._copy(tier, entry)

    def _copy(self, tier: SlowTier, entry: Entry) -> None:
        buffer = entry.buffer
        if buffer is None or entry.removed or tier.table.get(tier.edge.key_of(entry)) is not None:
            return
        below = self._entry(self.tiers.index(tier), entry)
        if below is not None:
            self._mover.dram.pin(entry)
            tier.copying_bytes += entry.page_bytes
            dram = self._mover.dram.name
            self.write(tier, below, buffer, lambda: self._copied(tier, entry), dram)

    def _busy(self, tier: SlowTier) -> bool:
        """Whether more is on its way to a tier than it may take; never while nothing is."""
        settings = self._mover.settings
        backlog_s = tier.store_backlog_s if settings.backpressure != "off" else 0.0
        return backlog_s > settings.backlog_s

    def slow_down(self) -> None:
        """Let a store wait until the tiers have room on their way, `tiers.backlog_s` at most.

        Outcomes take effect meanwhile, so nothing may hold on to entries here.
        """
        settings, clock = self._mover.settings, self._mover.clock
        if settings.backpressure != "wait":
            return
        for tier in self.tiers:
            start_s = clock.now_s()
            for _ in range(int(settings.backlog_s / WAIT_STEP_S)):  # a clock may stand still
                if not self._busy(tier) or clock.now_s() - start_s > settings.backlog_s:
                    break
                self.wait_done(WAIT_STEP_S)
                self.drain()
            tier.counters.slowed_s += clock.now_s() - start_s

    def write(
        self,
        tier: SlowTier,
        entry: Entry,
        buffer: np.ndarray,
        give: Callable[[], None],
        source: str,
    ) -> None:
        """Write a page in the background, publish the entry, and give the buffer back.

        `source`: the tier that the page comes from.
        """
        mover = self._mover
        tier.table.pin(entry)

        def finish() -> None:
            if entry.state is State.WRITING:
                mover.publish(tier.name, entry)
            give()  # only now, so that a slow tier pushes back

        def then(outcome: Outcome) -> None:
            if outcome.reason:
                self._drop(tier, entry)
                mover.fault(tier.name, outcome.reason, entry, writing=True)
            else:
                entry.record = outcome.record
                if outcome.record is not None:
                    entry.checksums = outcome.record.checksums
                tier.health.stored(entry.page_bytes, outcome.seconds)
                mover.flows.moved(source, tier.name, entry.page_bytes)
                tier.table.recharge(entry, outcome.real_bytes)
            tier.table.unpin(entry)
            tier.bucket.pace(entry.page_bytes, outcome.start_s, finish)

        tier.write(entry, buffer, then)

    def evict(self, at: int, victim: Entry) -> bool:
        """Take an unpinned entry out of a tier, to the next that takes it; True if one has it."""
        tier = self.tiers[at]
        to = self._hand_down(at, victim)
        if not victim.removed:
            tier.forget(victim)
        data = {"tier": tier.name, "num_bytes": victim.page_bytes, "to_tier": to}
        self._mover.emit_entry("evict", victim, data | {"demoted": bool(to)})
        return bool(to)

    def trim(self, watermark: float, ratio: float) -> None:
        """Evict what lies above each tier's cap, or in one go where it is above the watermark."""
        for at, tier in enumerate(self.tiers):
            limit = tier.table.limit(watermark, ratio)  # a file may take more than was reserved
            for entry in tier.table.excess(limit) if limit is not None else ():
                self.evict(at, entry)

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Block until no transfer is queued or moving, or the time is up."""
        idle = [tier.io.wait_idle(timeout_s) for tier in self.tiers]
        return all(idle)

    def wait_done(self, timeout_s: float) -> None:
        """Block until some transfer has ended, at most so long; throttled ones need no thread."""
        busy = next((tier.io for tier in self.tiers if tier.io.num_pending), None)
        if busy is not None:
            busy.wait_done(timeout_s)
        else:
            time.sleep(timeout_s)

    def drain(self) -> None:
        """Let finished transfers take effect, and those begin that waited for them."""
        for tier in self.tiers:
            tier.io.drain()
            tier.bucket.advance()
        if self._owed:
            self._pay()

    def settle(self, tier: SlowTier) -> None:
        """End a tier's transfers, those that a throttle holds too."""
        tier.io.wait_idle(None)
        tier.io.drain()
        tier.bucket.release()

    def close_tier(self, tier: SlowTier) -> None:
        """Switch a tier off."""
        self.settle(tier)
        tier.close()

    def close(self) -> None:
        """Switch all tiers off, from the top, and end their threads."""
        for tier in self.tiers:
            self.close_tier(tier)
        for tier in self.tiers:
            tier.io.close()

    def _entry(self, at: int, of: Entry) -> Entry | None:
        """A WRITING entry in a tier with its room reserved; None if the tier does not take it."""
        tier = self.tiers[at]
        key = tier.edge.key_of(of)
        if not tier.takes(key) or tier.table.get(key) is not None:
            return None
        if self._mover.settings.backpressure == "refuse" and self._busy(tier):
            tier.counters.num_refused += 1
            return None
        charge = tier.charge(of.page_bytes, len(of.checksums), len(encode_key(key)))
        victims = tier.table.victims(charge)
        if victims is None or not self.admission.admits(of.key, _first(victims)):
            return None
        for victim in victims:
            self.evict(at, victim)
        number = self._mover.next_generation()
        entry = Entry(key, of.page_bytes, charge, of.checksums, number, State.WRITING)
        entry.coded, entry.facts = of.coded, of.facts
        tier.table.add(entry)
        return entry

    def _hand_down(self, at: int, victim: Entry) -> str:
        """Move a victim to a lower tier; its name, or nothing if none takes it."""
        tier, mover = self.tiers[at], self._mover
        if not any(lower.takes(victim.key) for lower in self.tiers[at + 1 :]):
            return ""
        holder = self.holder(victim, at + 1)
        if holder is not None:
            return holder.name
        buffer = mover.staging.take(victim.page_bytes)
        target = self.reserve(victim, at + 1) if buffer is not None else None
        if buffer is None or target is None:
            if buffer is not None:
                mover.staging.give(buffer)
            return ""
        lower, entry = target
        self._move(tier, victim, buffer, lower, entry)
        return lower.name

    def _move(
        self, tier: SlowTier, victim: Entry, buffer: np.ndarray, lower: SlowTier, entry: Entry
    ) -> None:
        mover = self._mover
        lower.table.pin(entry)  # until it is being written

        def finish(outcome: Outcome) -> None:
            if outcome.reason or entry.removed:
                self._drop(lower, entry)
                mover.staging.give(buffer)
            else:
                self.write(lower, entry, buffer, lambda: mover.staging.give(buffer), tier.name)
            lower.table.unpin(entry)

        def then(outcome: Outcome) -> None:
            if outcome.record is not None:
                entry.checksums = outcome.record.checksums
            if outcome.reason:
                mover.fault(tier.name, outcome.reason, victim)
            else:
                tier.health.handed_down()
            tier.table.unpin(victim)
            tier.bucket.pace(victim.page_bytes, outcome.start_s, lambda: finish(outcome))

        tier.table.pin(victim)
        tier.read(victim, buffer, then)
        tier.leave(victim)

    def _drop(self, tier: SlowTier, entry: Entry) -> None:
        entry.state = State.FAILED
        tier.table.remove(entry)
        tier.counters.num_dropped_stores += 1

    def _copied(self, tier: SlowTier, entry: Entry) -> None:
        tier.copying_bytes -= entry.page_bytes
        self._mover.dram.unpin(entry)


def _first(victims: list[Entry]) -> TierKey | None:
    return victims[0].key if victims else None
