"""What a tier holds: entries in LRU order, their pins and the bytes they are charged.

    WRITING --published--> READY --removed--> gone, or doomed while something still reads it
       └----I/O failed---> FAILED (always removed)

A removed entry leaves the index at once, so that no lookup finds it, but its bytes stay charged
until the last pin is gone (invariant I7).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from workbench.cache.codec import CodedRow
from workbench.cache.keys import PrivateKey, TierKey
from workbench.cache.placement import PageFacts
from workbench.errors import IntegrityError
from workbench.spatial.hierarchy.medium import PageRecord
from workbench.spatial.hierarchy.pins import Hold, Pins
from workbench.spatial.hierarchy.sample import Bag, Order, ranked


class State(Enum):
    """Whether an entry may be read."""

    WRITING = "writing"
    READY = "ready"
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class Entry:
    """One page of one key in one tier.

    `charged_bytes`: what the tier's budget pays (page bytes in DRAM, real bytes on a medium).
    `checksums`: xxh3-64 of each slice. `buffer`: uint8 [page_bytes] in DRAM, None below. `coded`:
    under which key a lossy codec may keep it; None where it has to stay as it is. `record`: of the
    page on its medium. `facts` are shared by the entries of its key in all tiers.
    """

    key: TierKey
    page_bytes: int
    charged_bytes: int
    checksums: tuple[int, ...]
    generation: int
    state: State
    buffer: np.ndarray | None = None
    record: PageRecord | None = None
    pins: int = 0
    last_used: int = 0
    coded: CodedRow | None = None
    last_step: int = 0  # of the engine, at which it was stored or read last
    removed: bool = False
    leaving: bool = False  # its bytes go before anything new is written
    forgotten: bool = False  # removed from the index alone: the medium keeps or evicts it itself
    num_hits: int = 0
    told: bool = False  # whether a listener knows it as readable
    facts: PageFacts = field(default_factory=PageFacts)


Watch = Callable[[str, Entry, bool], None]  # tier, entry, whether it can be read from now on


class EntryTable:
    """Index, LRU order, pins and byte count of one tier; knows nothing of where bytes lie.

    `release(entry)` is called once, when the entry is removed and nothing pins it any more.
    `order`, if there is one, ranks a bounded sample of what may leave; otherwise the table's own
    order decides, LRU. `watch` is told of each entry that can be read, and once it no longer can.
    """

    def __init__(
        self,
        name: str,
        capacity_bytes: int,
        release: Callable[[Entry], None],
        pins: Pins | None = None,
        watch: Watch = lambda tier, entry, readable: None,
    ) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.holds = pins or Pins()  # of all tiers
        self.used_bytes = 0
        self.leaving_bytes = 0
        self.pinned_bytes = 0
        self.version = 0
        self.doomed: dict[int, Entry] = {}
        self._index: OrderedDict[TierKey, Entry] = OrderedDict()
        self._private: dict[str, set[PrivateKey]] = {}
        self._release = release
        self._watch = watch
        self.order: Order | None = None
        self.bag: Bag[Entry] = Bag()  # of what is indexed
        self.step = 0  # of the engine
        self._tick = 0
        self._rows: list[tuple[TierKey, int, Hold, int]] = []
        self._rows_version = -1

    def __len__(self) -> int:
        return len(self._index)

    @property
    def num_private(self) -> int:
        """Entries that belong to one request."""
        return sum(len(keys) for keys in self._private.values())

    def get(self, key: TierKey) -> Entry | None:
        """The entry of a key, without touching it."""
        return self._index.get(key)

    def all_entries(self) -> list[Entry]:
        """Indexed entries, least recently used first."""
        return list(self._index.values())

    def add(self, entry: Entry) -> None:
        """Index an entry whose room was made before; the key must be free."""
        room = self.capacity_bytes - self.used_bytes + self.leaving_bytes
        if entry.key in self._index or entry.charged_bytes > room:
            raise IntegrityError(
                f"{self.name} has no room or no free key for an entry of {entry.charged_bytes} "
                "bytes: make room before adding"
            )
        self._index[entry.key] = entry
        self.bag.add(entry)
        self.used_bytes += entry.charged_bytes
        if entry.pins:
            self.pinned_bytes += entry.charged_bytes
        if isinstance(entry.key, PrivateKey):
            self._private.setdefault(entry.key.request_id, set()).add(entry.key)
        self.touch(entry)
        if entry.state is State.READY:
            self.publish(entry)

    def publish(self, entry: Entry) -> None:
        """Make an entry readable; one that was removed meanwhile stays invisible."""
        entry.state = State.READY
        if not entry.removed:
            entry.told = True
            self._watch(self.name, entry, True)

    def touch(self, entry: Entry) -> None:
        """Make an entry the most recently used."""
        self._tick += 1
        entry.last_used = self._tick
        entry.last_step = self.step
        if not entry.removed:
            self._index.move_to_end(entry.key)
        self.version += 1

    def recharge(self, entry: Entry, charged_bytes: int) -> None:
        """Correct what an entry is charged, once the real size is known."""
        difference = charged_bytes - entry.charged_bytes
        entry.charged_bytes = charged_bytes
        self.used_bytes += difference
        if entry.pins:
            self.pinned_bytes += difference
        self.version += 1

    def pin(self, entry: Entry) -> None:
        """Keep an entry's bytes until `unpin`."""
        entry.pins += 1
        if entry.pins == 1:
            self.pinned_bytes += entry.charged_bytes
            self.version += 1

    def unpin(self, entry: Entry) -> None:
        """Undo one `pin`; a removed entry without pins is released."""
        if entry.pins <= 0:
            raise IntegrityError(f"an entry of {self.name} was unpinned more often than pinned")
        entry.pins -= 1
        if entry.pins:
            return
        self.pinned_bytes -= entry.charged_bytes
        self.version += 1
        if entry.removed:
            del self.doomed[entry.generation]
            self._free(entry)

    def remove(self, entry: Entry) -> None:
        """Make an entry invisible now and release it as soon as nothing pins it."""
        if entry.removed:
            return
        del self._index[entry.key]
        self.bag.remove(entry)
        entry.removed = True
        self.version += 1
        if entry.told:
            entry.told = False
            self._watch(self.name, entry, False)
        if isinstance(entry.key, PrivateKey):
            keys = self._private[entry.key.request_id]
            keys.discard(entry.key)
            if not keys:
                del self._private[entry.key.request_id]
        if entry.pins:
            self.doomed[entry.generation] = entry
        else:
            self._free(entry)

    def leave(self, entry: Entry) -> None:
        """Remove a pinned entry whose bytes are read, then deleted, before anything is written.

        So its room can be given away at once, while it stays charged until the last pin is gone.
        """
        entry.leaving = True
        self.leaving_bytes += entry.charged_bytes
        self.remove(entry)

    def has_room(self, num_bytes: int) -> bool:
        """Whether room for so many bytes could be made now."""
        fits = num_bytes <= self.capacity_bytes
        return fits and self._oldest(self.used_bytes + num_bytes - self.capacity_bytes)[1] <= 0

    def victims(self, num_bytes: int) -> list[Entry] | None:
        """Entries whose removal makes room for `num_bytes`, in the order in which they leave.

        None if even all evictable ones are too few; nothing has changed then (invariant I5).
        """
        if not self.has_room(num_bytes):
            return None
        return self._leaving(self.used_bytes + num_bytes - self.capacity_bytes)

    def excess(self, limit_bytes: int | None = None) -> list[Entry]:
        """Evictable entries above the cap, or above another limit, as they leave."""
        limit = self.capacity_bytes if limit_bytes is None else limit_bytes
        return self._leaving(self.used_bytes - limit)

    def limit(self, watermark: float, ratio: float) -> int | None:
        """Bytes to evict down to now; None while the table is below its cap or watermark.

        Above the watermark at least that share of the cap goes (Mooncake: 0.90 and 0.05).
        """
        used, cap = self.used_bytes - self.leaving_bytes, self.capacity_bytes
        if used <= watermark * cap:
            return None
        return cap if watermark >= 1.0 else int(min(watermark * cap, used - ratio * cap))

    def hold(self, entry: Entry) -> Hold:
        """What keeps an entry here: its bytes are moving, or somebody asked for it."""
        if entry.pins or entry.state is not State.READY:
            return Hold.BUSY
        return self.holds.hold(entry.key)

    def evictable(self, entry: Entry) -> bool:
        """Whether nothing reads, writes or holds an entry; one with a soft pin may go, as last."""
        return self.hold(entry) <= Hold.SOFT

    def oldest(self) -> Iterable[Entry]:
        """Indexed entries, least recently used first, as they are now."""
        return self._index.values()

    def _leaving(self, num_bytes: int) -> list[Entry]:
        if self.order is None:
            return self._oldest(num_bytes)[0]
        return ranked(self, num_bytes - self.leaving_bytes, self.order)

    def _oldest(self, num_bytes: int) -> tuple[list[Entry], int]:
        """Evictable entries of so many bytes, and how many bytes are still missing then."""
        chosen: list[Entry] = []
        rest = num_bytes - self.leaving_bytes
        if rest <= 0:
            return chosen, rest
        for turn in (Hold.NONE, Hold.SOFT):
            for entry in self._index.values():
                if self.hold(entry) is turn:
                    chosen.append(entry)
                    rest -= entry.charged_bytes
                    if rest <= 0:
                        return chosen, rest
        return chosen, rest

    def private_entries(self, request_id: str) -> list[Entry]:
        """Indexed entries that belong to a request."""
        return [self._index[key] for key in self._private.get(request_id, ())]

    def rows(self) -> list[tuple[TierKey, int, Hold, int]]:
        """(key, charged bytes, hold, last used) in LRU order; cached until something changes."""
        if self._rows_version != self.version:
            self._rows = [
                (entry.key, entry.charged_bytes, self._shown(entry), entry.last_used)
                for entry in self._index.values()
            ]
            self._rows_version = self.version
        return self._rows

    def _shown(self, entry: Entry) -> Hold:
        return Hold.BUSY if entry.pins else self.holds.hold(entry.key)

    def check(self) -> None:
        """Raise IntegrityError if bytes, pins or the index disagree with the entries (I7, I10)."""
        everything = [*self._index.values(), *self.doomed.values()]
        used = sum(entry.charged_bytes for entry in everything)
        pinned = sum(entry.charged_bytes for entry in everything if entry.pins)
        if used != self.used_bytes or pinned != self.pinned_bytes:
            raise IntegrityError(
                f"{self.name} counts {self.used_bytes} bytes ({self.pinned_bytes} pinned) but its "
                f"entries hold {used} ({pinned} pinned)"
            )
        over = used - self.leaving_bytes > self.capacity_bytes
        if over and any(self.evictable(entry) for entry in self._index.values()):
            raise IntegrityError(
                f"{self.name} holds {used} bytes, above its cap of {self.capacity_bytes}"
            )
        leaving = sum(entry.charged_bytes for entry in self.doomed.values() if entry.leaving)
        if leaving != self.leaving_bytes:
            raise IntegrityError(
                f"{self.name} counts {self.leaving_bytes} bytes as leaving, but {leaving} are"
            )
        if len(self.bag) != len(self._index):
            raise IntegrityError(f"{self.name} draws from another number of entries than it has")
        if any(entry.removed or entry.key != key for key, entry in self._index.items()):
            raise IntegrityError(f"{self.name}'s index holds a removed or renamed entry")
        if any(not entry.pins or not entry.removed for entry in self.doomed.values()):
            raise IntegrityError(f"{self.name} keeps a removed entry that nothing pins")
        private = {key for key in self._index if isinstance(key, PrivateKey)}
        if private != {key for keys in self._private.values() for key in keys}:
            raise IntegrityError(f"{self.name}'s list of private entries differs from its index")

    def _free(self, entry: Entry) -> None:
        self.used_bytes -= entry.charged_bytes
        if entry.leaving:
            self.leaving_bytes -= entry.charged_bytes
        self.version += 1
        self._release(entry)
