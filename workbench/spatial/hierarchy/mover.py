"""Moves pages between the tiers: stores into DRAM, demotions to disk, promotions back.

    store ──► G2 DRAM ──LRU victim──► staging ──I/O thread──► G3 disk
                 ▲                                               │
                 └──────────── I/O thread, verified ─────────────┘

The tiers are not exclusive: a page promoted from G3 keeps its file, so that evicting it again from
G2 costs no write. A victim moves to staging by handing over its buffer, without a copy.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.cache.codec import CodedRow
from workbench.cache.keys import PrivateKey, TierKey
from workbench.clock import Clock
from workbench.spatial.hierarchy.bandwidth import TransferFit
from workbench.spatial.hierarchy.counters import TierCounters
from workbench.spatial.hierarchy.disk_tier import DiskTier
from workbench.spatial.hierarchy.entries import Entry, EntryTable, State, slice_checksums
from workbench.spatial.hierarchy.host_memory import HostMemory, Staging
from workbench.spatial.hierarchy.io_thread import IoThread, Outcome
from workbench.spatial.hierarchy.page_file import encode_key
from workbench.spatial.hierarchy.throttle import TokenBucket

OnEvent = Callable[[str, dict[str, Any]], None]
G2, G3 = "G2", "G3"


def key_text(key: TierKey) -> str:
    """A key for people and events: hex, or request, epoch, group and index."""
    if isinstance(key, PrivateKey):
        return f"{key.request_id}/{key.epoch}/{key.group}/{key.index}"
    return key.hex()


@dataclass(order=True, slots=True)
class _Held:
    ready_at_s: float
    order: int
    tier: str
    run: Callable[[], None]


class Mover:
    """Owns the bytes of both tiers and everything that moves them; the engine's thread only."""

    def __init__(self, clock: Clock, on_event: OnEvent) -> None:
        self.clock = clock
        self.emit = on_event
        self.memory = HostMemory(0)
        self.staging = Staging(self.memory, 0)
        self.dram = EntryTable(G2, 0, self._release_dram)
        self.disk = DiskTier.closed()
        self.io = IoThread("kv-tier-io")
        self.buckets = {G2: TokenBucket(0.0), G3: TokenBucket(0.0)}
        self.counters = {G2: TierCounters(), G3: TierCounters()}
        self.copy_fit = TransferFit()
        self.kept: dict[int, Entry] = {}  # by generation: pinned in DRAM until they are released
        self._held: list[_Held] = []
        self._num_held = 0
        self._generation = 0

    def next_generation(self) -> int:
        """A number no entry had before: it names files and guards late completions."""
        self._generation += 1
        return self._generation

    def hold(self, tier: str, ready_at_s: float, run: Callable[[], None]) -> None:
        """Call `run` once the throttle lets this completion pass (at once if it does now)."""
        if ready_at_s <= self.clock.now_s():
            run()
            return
        self._num_held += 1
        heapq.heappush(self._held, _Held(ready_at_s, self._num_held, tier, run))

    def advance(self) -> None:
        """Let finished transfers and throttled completions take effect; never blocks."""
        self.io.drain()
        now_s = self.clock.now_s()
        while self._held and self._held[0].ready_at_s <= now_s:
            heapq.heappop(self._held).run()
        self.trim_dram()
        for entry in self.disk.table.excess():  # the file system charged more than reserved
            self.evict_disk(entry)

    @property
    def num_held(self) -> int:
        """Completions that a throttle holds back."""
        return len(self._held)

    def release_held(self, tier: str) -> None:
        """Let a tier's held completions pass now, because the tier goes away."""
        held = sorted(item for item in self._held if item.tier == tier)
        self._held = [item for item in self._held if item.tier != tier]
        heapq.heapify(self._held)
        for item in held:
            item.run()

    def set_throttle(self, tier: str, mb_s: float) -> None:
        """Change a tier's throttle; what waits now waits proportionally longer or shorter."""
        now_s = self.clock.now_s()
        factor = self.buckets[tier].set_rate(mb_s, now_s)
        if factor != 1.0:
            for item in self._held:
                if item.tier == tier:
                    item.ready_at_s = now_s + max(0.0, item.ready_at_s - now_s) * factor
            heapq.heapify(self._held)

    def store(
        self, key: TierKey, page: np.ndarray, num_slices: int, coded: CodedRow | None = None
    ) -> bool:
        """Copy a page into the first tier that takes it."""
        start_s = self.clock.now_s()
        checksums = slice_checksums(page, num_slices)
        entry = self.new_dram_entry(key, page.nbytes, checksums, coded)
        if entry is None:
            return self._store_on_disk(key, page, checksums, coded)
        assert entry.buffer is not None
        entry.buffer[:] = page
        seconds = self.clock.now_s() - start_s
        self.counters[G2].stored(page.nbytes, seconds)
        ready_at_s = self.buckets[G2].reserve(page.nbytes, start_s)
        self.hold(G2, ready_at_s, lambda: self.publish(G2, entry))
        return True

    def publish(self, tier: str, entry: Entry) -> None:
        """Make a written entry readable."""
        entry.state = State.READY
        if not entry.removed:
            data = {"tier": tier, "key": key_text(entry.key), "num_bytes": entry.page_bytes}
            self.emit("store", data)

    def new_dram_entry(
        self,
        key: TierKey,
        num_bytes: int,
        checksums: tuple[int, ...],
        coded: CodedRow | None = None,
    ) -> Entry | None:
        """A WRITING entry with a buffer in DRAM, or None if no room can be made."""
        victims = self.dram.victims(num_bytes)
        if victims is None:
            return None
        for victim in victims:
            self.evict_dram(victim)
        entry = Entry(key, num_bytes, num_bytes, checksums, self.next_generation(), State.WRITING)
        entry.coded = coded
        entry.buffer = self.memory.take(num_bytes)
        self.dram.add(entry)
        return entry

    def evict_dram(self, victim: Entry) -> bool:
        """Take an unpinned entry out of DRAM, to disk if that takes it; True if it lives on."""
        kept = self.disk.table.get(self.disk.key_of(victim)) is not None
        demoted = False
        buffer = victim.buffer
        if not kept and buffer is not None and self.disk.on and self.staging.fits(buffer.nbytes):
            disk_entry = self.disk_entry(victim)
            if disk_entry is not None:
                victim.buffer = None  # the buffer itself moves to staging
                self.dram.remove(victim)
                self.staging.adopt(buffer)
                self.write(disk_entry, buffer)
                demoted = True
        self.dram.remove(victim)
        if self.disk.on and not kept and not demoted:
            self.counters[G3].num_dropped_stores += 1
        self.counters[G2].num_evictions += 1
        self.emit(
            "evict",
            {
                "tier": G2,
                "key": key_text(victim.key),
                "num_bytes": victim.page_bytes,
                "demoted": demoted or kept,
            },
        )
        return demoted or kept

    def trim_dram(self) -> tuple[int, int]:
        """Evict until DRAM is within its cap; returns (evicted, of which still on disk)."""
        evicted = demoted = 0
        for entry in self.dram.excess():
            evicted += 1
            demoted += self.evict_dram(entry)
        return evicted, demoted

    def disk_entry(self, of: Entry) -> Entry | None:
        """A WRITING entry on disk with its room reserved, or None if no room can be made."""
        key, page_bytes, checksums = self.disk.key_of(of), of.page_bytes, of.checksums
        charge = self.disk.charge(page_bytes, len(checksums), len(encode_key(key)))
        victims = self.disk.table.victims(charge)
        if victims is None:
            return None
        for victim in victims:
            self.evict_disk(victim)
        entry = Entry(key, page_bytes, charge, checksums, self.next_generation(), State.WRITING)
        entry.coded = of.coded
        entry.file_name = self.disk.file_name(entry)
        self.disk.table.add(entry)
        return entry

    def evict_disk(self, victim: Entry) -> None:
        """Remove an entry and its file from disk."""
        self.disk.table.remove(victim)
        self.counters[G3].num_evictions += 1
        self.emit(
            "evict",
            {
                "tier": G3,
                "key": key_text(victim.key),
                "num_bytes": victim.page_bytes,
                "demoted": self.dram.get(victim.key) is not None,
            },
        )

    def write(self, entry: Entry, buffer: np.ndarray) -> None:
        """Write a staged buffer to disk in the background, then publish the entry."""
        disk = self.disk
        disk.table.pin(entry)

        def finish() -> None:
            if entry.state is State.WRITING:
                self.publish(G3, entry)
            self.staging.give(buffer)  # only now, so that a slow disk pushes back

        def then(outcome: Outcome) -> None:
            if outcome.reason:
                entry.state = State.FAILED
                disk.table.remove(entry)
                self.counters[G3].num_dropped_stores += 1
                self.fault(G3, outcome.reason, entry)
            else:
                entry.checksums = outcome.checksums or entry.checksums
                self.counters[G3].stored(entry.page_bytes, outcome.seconds)
                disk.table.recharge(entry, outcome.file_bytes)
            disk.table.unpin(entry)
            ready_at_s = self.buckets[G3].reserve(entry.page_bytes, outcome.start_s)
            self.hold(G3, ready_at_s, finish)

        self.io.submit(lambda: disk.write(entry, buffer, self.clock), then, buffer.nbytes)

    def fault(self, tier: str, reason: str, entry: Entry) -> None:
        """Count a fault and tell about it."""
        self.counters[tier].fault(reason)
        self.emit(
            "tier_fault",
            {
                "tier": tier,
                "reason": reason,
                "key": key_text(entry.key),
                "num_bytes": entry.page_bytes,
            },
        )

    def close_disk(self) -> None:
        """Switch disk off: finish its transfers, forget its entries, delete its files."""
        self.io.wait_idle(None)
        self.io.drain()
        self.release_held(G3)
        for entry in self.disk.table.all_entries():
            self.disk.table.remove(entry)
        self.io.wait_idle(None)
        self.io.drain()
        self.disk.close()
        self.disk = DiskTier.closed()

    def close(self) -> None:
        """End all transfers and the thread, and give every byte back."""
        self.close_disk()
        self.io.close()
        for entry in self.dram.all_entries():
            self.dram.remove(entry)
        self.memory.set_limit(0)

    def _store_on_disk(
        self,
        key: TierKey,
        page: np.ndarray,
        checksums: tuple[int, ...],
        coded: CodedRow | None,
    ) -> bool:
        given = Entry(key, page.nbytes, 0, checksums, 0, State.WRITING, coded=coded)
        held = self.disk.table.get(self.disk.key_of(given))
        if held is not None:  # as a lossy codec left it
            self.disk.table.touch(held)
            return True
        if self.disk.on and self.staging.fits(page.nbytes):
            entry = self.disk_entry(given)
            buffer = self.staging.take(page.nbytes) if entry is not None else None
            if entry is not None and buffer is not None:
                buffer[:] = page
                self.write(entry, buffer)
                return True
        for tier, on in ((G2, self.dram.capacity_bytes > 0), (G3, self.disk.on)):
            self.counters[tier].num_dropped_stores += on
        return False

    def _release_dram(self, entry: Entry) -> None:
        if entry.buffer is not None:
            self.memory.give(entry.buffer)
            entry.buffer = None
