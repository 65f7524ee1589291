"""A store that several engines share (G3.5): the client's side of `shared_store_server`.

Without an address the client starts a store of its own, a process that ends with it.
"""

import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from workbench.cache.tier import HOLD_S
from workbench.clock import RealClock
from workbench.spatial.hierarchy import shared_store_protocol as protocol
from workbench.spatial.hierarchy.batches import in_batches
from workbench.spatial.hierarchy.companion import Companion
from workbench.spatial.hierarchy.medium import Done, Get, MediumFault, PageRecord, Put, is_private
from workbench.spatial.hierarchy.record_header import (
    decode_header,
    storage_name,
    total_bytes,
)
from workbench.spatial.hierarchy.shared_store_arena import ArenaAccess
from workbench.spatial.hierarchy.shared_store_copy import TimedCopies
from workbench.spatial.hierarchy.shared_store_link import StoreLink
from workbench.spatial.hierarchy.shared_store_protocol import (
    BLOCK,
    Lease,
    Slot,
    Usage,
    Welcome,
)
from workbench.spatial.hierarchy.shared_store_remote import attach_by

SERVER_MODULE = "workbench.spatial.hierarchy.shared_store_server"
START_S = 20.0  # a cold disk can take seconds to start a Python process
RESTART_S = 5.0
BATCH_BYTES = 64 * 1024 * 1024  # what one lease or put time-out has to last for
MIB = 1024 * 1024
_Value = TypeVar("_Value")


class SharedStoreClient:
    """A `Medium` on a shared store; MediumFault with one sentence if it cannot be opened.

    `address` empty: a private store of `capacity_bytes`. `lease_ms` 0: as the store offers.
    `pace(num_bytes)` is called before each piece is copied, for a throttle that waits.
    `transport`: `direct` maps the store's memory, `nixl` reaches it through UCX.
    """

    shared = True
    persistent = False

    def __init__(
        self,
        address: str = "",
        capacity_bytes: int = 0,
        *,
        timeout_s: float = 2.0,
        lease_ms: int = 0,
        pace: Callable[[int], None] | None = None,
        transport: str = "direct",
    ) -> None:
        self._owner = secrets.token_bytes(16)
        self._lease_ms = lease_ms
        self._clock = RealClock()
        self._copies = TimedCopies(self._clock, pace)
        self._lock = threading.Lock()
        self._capacity_bytes = capacity_bytes
        self._started_at_s = 0.0
        self._companion: Companion | None = None
        self._transport = transport
        self._closed = False
        attach = attach_by(transport, self._clock.now_s)
        if not address:
            self._companion = Companion("kvw-store-")
            address = f"ipc://{self._companion.folder}/store"
            self._start_companion(self._companion, address)
        self.place = "a store of this engine's own" if self._companion else address
        self._link = StoreLink(address, self._owner, timeout_s, attach)
        try:
            self._open()
        except MediumFault:
            self._link.close()
            if self._companion is not None:
                self._companion.close()
            raise
        self.way = self._link.arena.way

    def charge_bytes(self, record: PageRecord) -> int:
        """Header and payload in whole blocks of 4096 bytes."""
        return -(-total_bytes(record) // BLOCK) * BLOCK

    def put(self, puts: Sequence[Put]) -> list[Done]:
        """Write pages in two phases; a whole page of that key, if it is there already, stays."""
        sizes = [total_bytes(put.record) for put in puts]
        return self._batches(sizes, lambda part: self._put(puts[part]))

    def get(self, gets: Sequence[Get]) -> list[Done]:
        """Copy ranges under a lease; "expired" where the copy took longer than the lease."""
        sizes = [get.out.nbytes for get in gets]
        return self._batches(sizes, lambda part: self._get(gets[part]))

    def remove(self, keys: Sequence[bytes]) -> list[Done]:
        """Delete pages; readers that have a lease read on."""
        try:
            self._call(protocol.Remove(self._names(keys)), int)
            return [Done()] * len(keys)
        except MediumFault as fault:
            return [Done(fault.reason)] * len(keys)

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """Ask the store for the headers."""
        try:
            headers = self._call(protocol.Probe(self._names(keys)), list[bytes])
            return [decode_header(header) if header else None for header in headers]
        except MediumFault:  # so each is a counted miss
            return [None] * len(keys)

    def prestage(self, keys: Sequence[bytes], hold_s: float = HOLD_S) -> list[bool]:
        """Ask the store to keep pages that will be read soon; which of them are there.

        The role of prestaging in ICMS: from the request's arrival until it is scheduled.
        """
        try:
            body = protocol.Prestage(self._names(keys), int(hold_s * 1000))
            return self._call(body, list[bool])
        except MediumFault:  # it would only have saved time
            return [False] * len(keys)

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Shared pages, oldest use first."""
        try:
            found = self._call(protocol.Scan(), list[tuple[bytes, int]])
            yield from [(decode_header(header), real_bytes) for header, real_bytes in found]
        except MediumFault:
            return  # a new process then finds none, as with an empty store

    def resize(self, capacity_bytes: int) -> bool:
        """A private store has to be opened anew; the cap of another is not ours to set."""
        return self._companion is None or capacity_bytes == self._capacity_bytes

    def usage(self) -> Usage | None:
        """What the store holds now; None where it does not answer."""
        try:
            return self._call(protocol.GetUsage(), Usage)
        except MediumFault:
            return None

    @property
    def real_bytes(self) -> int:
        """Bytes of the pages that this client has put, counted by the store."""
        usage = self.usage()
        return usage.own_bytes if usage is not None else 0

    @property
    def pid(self) -> int:
        """Process id of the store; 0 while it does not answer."""
        try:
            return self._link.welcome.pid
        except MediumFault:
            return 0

    def close(self, keep: bool) -> None:
        """Say good-bye, and end a private store: `keep` has no meaning where nothing is durable."""
        if self._closed:
            return
        try:
            self._call(protocol.Bye(), type(None))
        except MediumFault:
            pass  # it is gone, and so is what it held
        with self._lock:
            self._closed = True
            self._link.close()
        if self._companion is not None:
            self._companion.close()

    @property
    def can_unplug(self) -> bool:
        """One of this engine's own."""
        return self._companion is not None

    def unplug(self) -> None:
        """End the store's process."""
        if self._companion is not None:
            self._companion.unplug()

    def plug_in(self) -> None:
        """Start a store anew, which is empty."""
        if self._companion is not None:
            self._companion.plug_in()
            self._start_companion(self._companion, self._link.address)

    @property
    def can_fill(self) -> bool:
        """One of this engine's own."""
        return self._companion is not None

    def fill_up(self) -> None:
        """Let the store take no page more; it keeps what it has."""
        self._call(protocol.Seal(True), type(None))

    def make_room(self) -> None:
        """Let the store take pages again; one that was started anew does."""
        try:
            self._call(protocol.Seal(False), type(None))
        except MediumFault:
            pass  # it has ended, and a new one is not sealed

    def _open(self) -> None:
        """Greet the store; a private one is given the time to start."""
        companion = self._companion
        if companion is None:
            self._link.greet(opening=True)
            return
        until_s = self._clock.now_s() + START_S
        while True:
            try:
                self._link.greet()
                return
            except MediumFault as fault:
                if not companion.alive:
                    line = companion.last_line() or "it said nothing"
                    raise MediumFault("ended", f"the shared store ended: {line}") from None
                if fault.reason != "unreachable" or self._clock.now_s() > until_s:
                    raise

    def _start_companion(self, companion: Companion, address: str) -> None:
        mib = max(self._capacity_bytes, BLOCK) / MIB
        self._started_at_s = self._clock.now_s()
        companion.start([
            sys.executable, "-m", SERVER_MODULE, "--address", address, "--mib", repr(mib),
            "--watch-stdin", "--transport", self._transport,
        ])  # fmt: skip

    def _call(self, body: protocol.Body, kind: type[_Value]) -> _Value:
        return self._call_mapped(body, kind)[0]

    def _call_mapped(
        self, body: protocol.Body, kind: type[_Value]
    ) -> tuple[_Value, ArenaAccess, Welcome]:
        """The answer, with the memory it speaks of: another store may be greeted any moment."""
        with self._lock:
            if self._closed:
                raise MediumFault("closed")
            try:
                return self._link.call(body, kind), self._link.arena, self._link.welcome
            except MediumFault:
                self._revive()
                raise

    def _revive(self) -> None:
        """Start a private store again that was killed; what it held is lost, which is allowed."""
        companion = self._companion
        if companion is None or companion.alive:
            return
        if self._clock.now_s() - self._started_at_s > RESTART_S:
            self._start_companion(companion, self._link.address)

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        return [storage_name(key, self._owner) for key in keys]

    def _batches(self, sizes: list[int], run: Callable[[slice], list[Done]]) -> list[Done]:
        """Run pieces of a batch that a lease lasts for."""
        done: list[Done] = []
        for part in in_batches(sizes, BATCH_BYTES):
            try:
                done += run(part)
            except MediumFault as fault:
                done += [Done(fault.reason)] * (part.stop - part.start)
            except ValueError:  # runs outside the arena: what answers is no store of ours
                done += [Done("foreign")] * (part.stop - part.start)
        return done

    def _put(self, puts: Sequence[Put]) -> list[Done]:
        keys = [put.record.key for put in puts]
        sizes = [total_bytes(put.record) for put in puts]
        body = protocol.Allocate(self._names(keys), sizes, [is_private(key) for key in keys])
        start_s = self._clock.now_s()
        slots, arena, welcome = self._call_mapped(body, list[Slot])
        until_s = start_s + welcome.put_timeout_ms / 1000
        given = [at for at, slot in enumerate(slots) if not slot.reason]
        kept = [self._copies.write(arena, puts[at], slots[at].runs, until_s) for at in given]
        failed = "expired" if self._clock.now_s() > until_s else "unreachable"
        reasons = [slot.reason or failed for slot in slots]
        # A write given up on its way may still land: its room is not given back, but left to the
        # store's quarantine.
        ended = [n for n, whole in enumerate(kept) if whole or not arena.lost]
        if ended:
            tickets = [slots[given[n]].ticket for n in ended]
            commit = protocol.Commit(tickets, [kept[n] for n in ended])
            for n, reason in zip(ended, self._call(commit, list[str]), strict=True):
                reasons[given[n]] = "expired" if reason == "discarded" else reason
        return [
            Done(reason) if reason else Done("", self.charge_bytes(put.record))
            for reason, put in zip(reasons, puts, strict=True)
        ]

    def _get(self, gets: Sequence[Get]) -> list[Done]:
        records = {get.record.key: get.record for get in gets}
        names = self._names(list(records))
        start_s = self._clock.now_s()
        # The store counts a lease from later than this, so that ours never outlasts its own.
        body = protocol.Acquire(names, self._lease_ms or protocol.MAX_HOLD_MS)
        found, arena, welcome = self._call_mapped(body, list[Lease])
        until_s = start_s + min(body.lease_ms, welcome.lease_ms) / 1000
        leases = dict(zip(records, found, strict=True))
        done = [
            Done(self._copies.read(arena, get, leases[get.record.key], until_s)) for get in gets
        ]
        tickets = [lease.ticket for lease in leases.values() if not lease.reason]
        if tickets:
            with self._lock:
                if not self._closed:
                    self._link.notify(protocol.Release(tickets))
        return done
