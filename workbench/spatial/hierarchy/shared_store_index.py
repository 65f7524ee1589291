"""What a shared store holds: pages under leases, a time to live and one hard cap in bytes.

    Allocate ──► pending ──Commit──► page ──TTL, LRU or Remove──► leaving ──leases end──► free
                    │ too late: discarded, and its blocks free only once nobody can still write

No page is durable and none is promised: whoever misses one computes it again (the role of NVIDIA's
ICMS / CMX, G3.5). Two phases and leases as in Mooncake Store. Time comes with each call.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from workbench.spatial.hierarchy.extents import Extents
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.record_header import decode_header, storage_name, total_bytes
from workbench.spatial.hierarchy.shared_store_protocol import (
    BLOCK,
    MAX_RUNS,
    Lease,
    Runs,
    Slot,
    Usage,
)

ReadHeader = Callable[[Runs], bytes]  # the header that lies at the beginning of some runs


@dataclass(frozen=True)
class StoreLimits:
    """`ttl_s`: how long an unused page stays; `lease_s`: the longest lease a reader gets.

    `put_timeout_s`: a put not committed by then is discarded; its blocks are used again after
    `quarantine_s`, so that a writer that was stopped for a while does no harm.
    """

    ttl_s: float = 600.0
    lease_s: float = 5.0
    put_timeout_s: float = 5.0
    quarantine_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("ttl_s", "lease_s", "put_timeout_s", "quarantine_s"):
            if not 0.0 < getattr(self, name) <= 86_400.0:
                value = getattr(self, name)
                raise ValueError(f"{name}={value}: give seconds above 0, at most 86400")
        if self.quarantine_s < self.put_timeout_s:
            raise ValueError(
                f"quarantine_s={self.quarantine_s}: at least put_timeout_s={self.put_timeout_s}"
            )


@dataclass(slots=True)
class _Page:
    name: bytes
    header: bytes
    runs: Runs
    owner: bytes
    private: bool
    expires_s: float
    held_until_s: float = 0.0
    leases: dict[int, float] = field(default_factory=dict)  # ticket -> until when

    @property
    def num_blocks(self) -> int:
        return sum(count for _, count in self.runs)

    def in_use(self, now_s: float) -> bool:
        return any(until_s > now_s for until_s in self.leases.values())


@dataclass(frozen=True, slots=True)
class _Pending:
    name: bytes
    num_bytes: int
    runs: Runs
    owner: bytes
    private: bool
    discard_s: float
    free_s: float


class StoreIndex:
    """Pages by name, in blocks 1 .. `num_blocks` of an arena (block 0 says what it is)."""

    def __init__(self, num_blocks: int, limits: StoreLimits, read_header: ReadHeader) -> None:
        self.limits = limits
        self.num_blocks = num_blocks
        self.num_evicted = 0
        self.num_expired = 0
        self.sealed = False  # no page more is taken
        self._read_header = read_header
        self._free = Extents()
        self._free.add(1, num_blocks)
        self._pages: OrderedDict[bytes, _Page] = OrderedDict()  # least recently used first
        self._pending: dict[int, _Pending] = {}
        self._leaving: list[_Page] = []
        self._leased: dict[int, _Page] = {}
        self._last_ticket = 0

    def allocate(
        self, name: bytes, num_bytes: int, private: bool, owner: bytes, now_s: float
    ) -> Slot:
        """Room for a page that is about to be written; evicts the least recently used."""
        blocks = -(-num_bytes // BLOCK)
        if not 0 < blocks <= self.num_blocks:
            return Slot("too_large")
        if self.sealed:
            return Slot("full")
        runs = self._free.take(blocks, MAX_RUNS)
        if runs is None:
            self._free_leaving(now_s)
            runs = self._free.take(blocks, MAX_RUNS)
        while runs is None:
            if not self._evict_one(now_s):
                return Slot("full")
            runs = self._free.take(blocks, MAX_RUNS)
        ticket = self._ticket()
        limits = self.limits
        self._pending[ticket] = _Pending(
            name, num_bytes, runs, owner, private,
            now_s + limits.put_timeout_s, now_s + limits.quarantine_s,
        )  # fmt: skip
        return Slot("", ticket, runs)

    def commit(self, ticket: int, kept: bool, owner: bytes, now_s: float) -> str:
        """Make a written page visible; the writer is done with its blocks either way.

        If the name was taken meanwhile, the page that is there stays: one is as good as the other.
        """
        pending = self._pending.get(ticket)
        if pending is None or pending.owner != owner:
            return "expired"
        del self._pending[ticket]
        reason = ""
        if not kept:
            reason = "discarded"
        elif now_s > pending.discard_s:
            reason = "expired"
        elif pending.name in self._pages:
            self._touch(self._pages[pending.name], now_s)
        else:
            reason = self._publish(pending, now_s)
            if not reason:
                return ""
        self._give_back(pending.runs)
        return reason

    def acquire(self, name: bytes, lease_s: float, now_s: float) -> Lease:
        """A lease: its blocks stay as they are for `lease_s` from now."""
        page = self._pages.get(name)
        if page is None or page.expires_s <= now_s:
            return Lease("gone")
        self._touch(page, now_s)
        ticket = self._ticket()
        page.leases[ticket] = now_s + min(lease_s, self.limits.lease_s)
        self._leased[ticket] = page
        return Lease("", ticket, page.header, page.runs)

    def release(self, ticket: int) -> None:
        """End a lease early."""
        page = self._leased.pop(ticket, None)
        if page is not None:
            page.leases.pop(ticket, None)

    def probe(self, name: bytes, now_s: float) -> bytes:
        """The header of a page, empty if it is not there."""
        page = self._pages.get(name)
        return page.header if page is not None and page.expires_s > now_s else b""

    def remove(self, name: bytes) -> bool:
        """Forget a page; its blocks are free once no lease holds them."""
        page = self._pages.pop(name, None)
        if page is None:
            return False
        self._leaving.append(page)
        return True

    def prestage(self, name: bytes, hold_s: float, now_s: float) -> bool:
        """Refresh a page and keep it from eviction for a while; whether it is there."""
        page = self._pages.get(name)
        if page is None or page.expires_s <= now_s:
            return False
        self._touch(page, now_s)
        page.held_until_s = max(page.held_until_s, now_s + hold_s)
        return True

    def scan(self) -> list[tuple[bytes, int]]:
        """Header and real bytes of the shared pages, oldest use first."""
        pages = self._pages.values()
        return [(page.header, page.num_blocks * BLOCK) for page in pages if not page.private]

    def forget_owner(self, owner: bytes) -> None:
        """A client goes: nobody asks for its private pages any more."""
        for page in [page for page in self._pages.values() if page.private and page.owner == owner]:
            self.remove(page.name)

    def usage(self, owner: bytes, now_s: float) -> Usage:
        """Bytes now; pages that are being written or still leased count as used."""
        own = sum(page.num_blocks for page in self._pages.values() if page.owner == owner)
        return Usage(
            own_bytes=own * BLOCK,
            used_bytes=(self.num_blocks - self._free.free_blocks) * BLOCK,
            capacity_bytes=self.num_blocks * BLOCK,
            num_pages=len(self._pages),
            num_evicted=self.num_evicted,
            num_expired=self.num_expired,
            num_leased=sum(page.in_use(now_s) for page in [*self._pages.values(), *self._leaving]),
            num_held=sum(page.held_until_s > now_s for page in self._pages.values()),
        )

    def sweep(self, now_s: float) -> None:
        """Let expired pages go, and free what nobody can read or write any more."""
        while self._pages:
            oldest = next(iter(self._pages.values()))
            if oldest.expires_s > now_s:
                break
            self.num_expired += 1
            self.remove(oldest.name)
        for ticket in [key for key, item in self._pending.items() if item.free_s <= now_s]:
            self._give_back(self._pending.pop(ticket).runs)
        for ticket in [key for key, page in self._leased.items() if page.leases[key] <= now_s]:
            self.release(ticket)
        self._free_leaving(now_s)

    def check(self) -> None:
        """Raise ValueError unless every block is free or has exactly one user."""
        self._free.check()
        runs = self._free.runs()
        for page in [*self._pages.values(), *self._leaving]:
            runs += page.runs
        for pending in self._pending.values():
            runs += pending.runs
        at = 1
        for start, count in sorted(runs):
            if start != at:
                raise ValueError(f"blocks {at}..{start} are used twice or lost")
            at += count
        if at != self.num_blocks + 1:
            raise ValueError(f"blocks from {at} on are lost")

    def _publish(self, pending: _Pending, now_s: float) -> str:
        try:
            header = self._read_header(pending.runs)
            record = decode_header(header)
        except MediumFault as fault:
            return fault.reason
        named = storage_name(record.key, pending.owner)
        if named != pending.name or total_bytes(record) > pending.num_bytes:
            return "corrupt"
        self._pages[pending.name] = _Page(
            pending.name, header, pending.runs, pending.owner, pending.private,
            now_s + self.limits.ttl_s,
        )  # fmt: skip
        return ""

    def _touch(self, page: _Page, now_s: float) -> None:
        page.expires_s = now_s + self.limits.ttl_s
        self._pages.move_to_end(page.name)

    def _evict_one(self, now_s: float) -> bool:
        for page in self._pages.values():
            if page.held_until_s <= now_s and not page.in_use(now_s):
                self.num_evicted += 1
                self.remove(page.name)
                self._free_leaving(now_s)
                return True
        return False

    def _free_leaving(self, now_s: float) -> None:
        still: list[_Page] = []
        for page in self._leaving:
            if page.in_use(now_s):
                still.append(page)
                continue
            for ticket in page.leases:
                self._leased.pop(ticket, None)
            self._give_back(page.runs)
        self._leaving = still

    def _give_back(self, runs: Runs) -> None:
        for start, count in runs:
            self._free.add(start, count)

    def _ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket
