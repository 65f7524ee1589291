"""A pool on a real Mooncake Store: one immutable object a page, header before payload, over TCP.

    kvw1:<hex>    a shared page          kvw1-private:<hex>    a request's own

The master evicts by itself (watermark 0.9, leases of 10 s for what was just read), so "gone" is a
miss. Without an address the pool starts a master and a store of its own, which end with it.
"""

import json
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from workbench.clock import RealClock
from workbench.spatial.hierarchy.aligned import address as memory_address
from workbench.spatial.hierarchy.companion import Companion
from workbench.spatial.hierarchy.medium import Done, Get, MediumFault, PageRecord, Put, is_private
from workbench.spatial.hierarchy.mooncake_library import (
    TAKEN,
    MasterAddress,
    load_store,
    parse_address,
    reason_of,
)
from workbench.spatial.hierarchy.mooncake_server import READY
from workbench.spatial.hierarchy.record_header import (
    PROBE_BYTES,
    decode_header,
    encode_header,
    header_bytes,
    needed_bytes,
    storage_name,
    total_bytes,
)

SERVER_MODULE = "workbench.spatial.hierarchy.mooncake_server"
PAGES, PRIVATE = "kvw1:", "kvw1-private:"
LEAST_BYTES = 16 * 1024 * 1024  # of memory that a client brings to a store
BATCH_BYTES = 16 * 1024 * 1024
BATCH_KEYS = 256
START_S = 30.0
AGAIN_S = 5.0  # how often a store that does not answer is set up anew
HTTP_S = 2.0


class MooncakePool:
    """A `Medium` on Mooncake Store; `address` as in `mooncake_library`, empty for a private one.

    MediumFault with one sentence if it is not installed, does not start or does not answer.
    """

    shared = True
    persistent = False
    way = "Mooncake over TCP"

    def __init__(self, address: str = "", capacity_bytes: int = 0) -> None:
        self._library = load_store()
        self._owner = secrets.token_bytes(16)
        self._own: dict[bytes, int] = {}  # bytes of what this process has put
        self._clock = RealClock()
        self._memory = np.empty(0, np.uint8)
        self._client: Any = None
        self._companion: Companion | None = None
        self._capacity_bytes, self._started_at_s = capacity_bytes, self._clock.now_s()
        if address:
            self._master = parse_address(address)
        else:
            self._companion = Companion("kvw-mooncake-")
        self.place = address or "a Mooncake Store of this engine's own"
        try:
            if self._companion is not None:
                self._start(self._companion)
            self._connect()
        except MediumFault:
            self.close(keep=False)
            raise

    def charge_bytes(self, record: PageRecord) -> int:
        """Header and payload."""
        return total_bytes(record)

    def put(self, puts: Sequence[Put]) -> list[Done]:
        """Put objects; a whole page of that key, if it is there already, stays."""
        return self._batches(puts, lambda put: total_bytes(put.record), self._put)

    def get(self, gets: Sequence[Get]) -> list[Done]:
        """Read ranges, and the header of each page beside them."""
        return self._batches(gets, lambda get: header_bytes(get.record) + get.out.nbytes, self._get)

    def remove(self, keys: Sequence[bytes]) -> list[Done]:
        """Delete objects, those under a lease too: who reads one sees that it is not whole."""
        return self._batches(keys, lambda key: 0, self._remove)

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """Read the header of each object."""
        records: list[PageRecord | None] = []
        for start in range(0, len(keys), BATCH_KEYS):
            part = keys[start : start + BATCH_KEYS]
            try:
                found = self._records([self._name(key) for key in part])
            except MediumFault:
                found = [None] * len(part)
            records += [
                record if record is not None and record.key == key else None
                for key, record in zip(part, found, strict=True)
            ]
        return records

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Whole shared pages as the master names them over HTTP; their order of use is not told."""
        url = f"http://{self._master.host}:{self._master.admin_port}/get_all_keys"
        try:
            with urllib.request.urlopen(url, timeout=HTTP_S) as answer:
                text = answer.read().decode(errors="replace")
        except (urllib.error.URLError, OSError, json.JSONDecodeError):
            return  # a master that shows no HTTP to us
        names = [name for name in text.split() if name.startswith(PAGES)]
        for start in range(0, len(names), BATCH_KEYS):
            part = names[start : start + BATCH_KEYS]
            try:
                found = self._records(part)
            except MediumFault:
                return
            for name, record in zip(part, found, strict=True):
                if record is not None and self._name(record.key) == name:
                    yield record, total_bytes(record)

    def resize(self, capacity_bytes: int) -> bool:
        """A private store has to be opened anew; the cap of another is not ours to set."""
        return self._companion is None or capacity_bytes == self._capacity_bytes

    @property
    def real_bytes(self) -> int:
        """Bytes of the pages that this process has put and the store still has."""
        own = list(self._own)
        there = self._client.batch_is_exist([self._name(key) for key in own]) if own else []
        for key, found in zip(own, there, strict=True):
            if found == 0:
                del self._own[key]
        return sum(self._own.values())

    def close(self, keep: bool) -> None:
        """Delete the private pages and let the store go; a private one ends."""
        if self._client is not None:
            if self._companion is None:
                self.remove([key for key in self._own if is_private(key)])
            self._disconnect()
        if self._companion is not None:
            self._companion.close()

    # ---- connection

    def _start(self, companion: Companion) -> None:
        """Start the private store on two free ports, and wait until it says that it is ready."""
        if self._capacity_bytes < LEAST_BYTES:
            raise MediumFault(
                "capacity",
                f"a Mooncake Store of {self._capacity_bytes / 1048576:.1f} MiB: "
                f"give at least {LEAST_BYTES // 1048576} MiB",
            )
        port, admin = _free_ports(2)
        self._master = MasterAddress("127.0.0.1", port, admin)
        self._started_at_s = self._clock.now_s()
        companion.start([
            sys.executable, "-m", SERVER_MODULE, f"--port={port}", f"--admin-port={admin}",
            f"--bytes={self._capacity_bytes}",
        ])  # fmt: skip
        while READY not in companion.log_file.read_text(errors="replace"):
            if not companion.alive or self._clock.now_s() > self._started_at_s + START_S:
                line = companion.last_line() or "it said nothing"
                raise MediumFault("ended", f"the private Mooncake Store did not start: {line}")
            time.sleep(0.02)

    def _connect(self) -> None:
        master = self._master
        try:  # its own attempts take long where nobody listens
            socket.create_connection((master.host, master.port), HTTP_S).close()
        except OSError:
            raise MediumFault("unreachable", f"{self.place} does not answer") from None
        client = self._library()
        code = client.setup(
            master.local_name, "P2PHANDSHAKE", 0, BATCH_BYTES, "tcp", "",
            f"{master.host}:{master.port}",
        )  # fmt: skip
        if code:
            raise MediumFault("unreachable", f"{self.place} does not let this engine in ({code})")
        self._client = client
        self._provide(BATCH_BYTES)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if self._memory.nbytes:
            client.unregister_buffer(memory_address(self._memory))
            self._memory = np.empty(0, np.uint8)
        client.close()

    def _failed(self, reason: str) -> None:
        """Where the store does not answer, start ours again and set up the client anew."""
        late = self._clock.now_s() - self._started_at_s > AGAIN_S
        if reason != "unreachable" or not late:
            return
        self._started_at_s = self._clock.now_s()
        try:
            if self._client is not None:
                self._disconnect()
            if self._companion is not None and not self._companion.alive:
                self._start(self._companion)
            self._connect()
        except MediumFault:
            return  # told by the next operation

    def _provide(self, num_bytes: int) -> None:
        """Have registered memory of so many bytes."""
        if self._client is None:
            raise MediumFault("unreachable")
        if num_bytes <= self._memory.nbytes:
            return
        if self._memory.nbytes:
            self._client.unregister_buffer(memory_address(self._memory))
        self._memory = np.empty(num_bytes, np.uint8)
        if self._client.register_buffer(memory_address(self._memory), num_bytes):
            raise MediumFault("no_memory")

    # ---- batches

    def _name(self, key: bytes) -> str:
        return (PRIVATE if is_private(key) else PAGES) + storage_name(key, self._owner).hex()

    def _batches(
        self,
        items: Sequence[Any],
        size: Callable[[Any], int],
        run: Callable[[Sequence[Any]], list[Done]],
    ) -> list[Done]:
        done: list[Done] = []
        while len(done) < len(items):
            end, total = len(done), 0
            while end < len(items) and end - len(done) < BATCH_KEYS:
                total += size(items[end])
                if total > BATCH_BYTES and end > len(done):
                    break
                end += 1
            part = items[len(done) : end]
            try:
                self._provide(min(total, max(BATCH_BYTES, size(part[0]))))
                answers = run(part)
            except MediumFault as fault:
                answers = [Done(fault.reason)] * len(part)
            done += answers
            self._failed(next((each.reason for each in answers if each.reason), ""))
        return done

    def _put(self, puts: Sequence[Put]) -> list[Done]:
        at, begin = 0, memory_address(self._memory)
        addresses, sizes = [], []
        for put in puts:
            header = np.frombuffer(encode_header(put.record), np.uint8)
            end = at + header.nbytes
            self._memory[at:end] = header
            self._memory[end : end + put.payload.nbytes] = put.payload
            addresses.append(begin + at)
            sizes.append(header.nbytes + put.payload.nbytes)
            at = end + put.payload.nbytes
        names = [self._name(put.record.key) for put in puts]
        codes = self._client.batch_put_from(names, addresses, sizes)
        done = []
        for put, code, size in zip(puts, codes, sizes, strict=True):
            reason = reason_of(code) if code < 0 and code != TAKEN else ""
            if not reason:
                self._own[put.record.key] = size
            done.append(Done(reason, 0 if reason else size))
        return done

    def _ranges(self, names: Sequence[str], ranges: Sequence[list[tuple[int, int]]]) -> list[Any]:
        """Read (offset, bytes) of objects one behind the other; a code or their bytes for each."""
        at, into, begins, lengths = 0, [], [], []
        for parts in ranges:
            begins.append([begin for begin, _ in parts])
            lengths.append([size for _, size in parts])
            into.append(list(accumulate(lengths[-1][:-1], initial=at)))
            at += sum(lengths[-1])
        self._provide(at)
        (answers,) = self._client.get_into_ranges(
            [memory_address(self._memory)], [list(names)], [into], [begins], [lengths]
        )
        found: list[Any] = []
        for place, sizes, codes in zip(into, lengths, answers, strict=True):
            bad = next((code for code, size in zip(codes, sizes, strict=True) if code != size), 0)
            views = [self._memory[p : p + size] for p, size in zip(place, sizes, strict=True)]
            found.append(views if not bad else bad)
        return found

    def _get(self, gets: Sequence[Get]) -> list[Done]:
        wanted = [
            [(0, begin), (begin + get.offset, get.out.nbytes)]
            for get, begin in ((get, header_bytes(get.record)) for get in gets)
        ]
        found = self._ranges([self._name(get.record.key) for get in gets], wanted)
        return [Done(_take(get, parts)) for get, parts in zip(gets, found, strict=True)]

    def _records(self, names: Sequence[str]) -> list[PageRecord | None]:
        """The record of each object that is a whole page; MediumFault without an answer."""
        sizes = [self._size(name) for name in names]
        there = [at for at, size in enumerate(sizes) if size > 0]
        heads = self._ranges(
            [names[at] for at in there], [[(0, min(PROBE_BYTES, sizes[at]))] for at in there]
        )
        records: list[PageRecord | None] = [None] * len(names)
        copies = [bytes(head[0]) if isinstance(head, list) else b"" for head in heads]
        for at, data in zip(there, copies, strict=True):
            try:
                if len(data) < needed_bytes(data):
                    (more,) = self._ranges([names[at]], [[(0, needed_bytes(data))]])
                    data = bytes(more[0]) if isinstance(more, list) else data
                record = decode_header(data)
            except MediumFault:
                continue
            records[at] = record if total_bytes(record) == sizes[at] else None
        return records

    def _size(self, name: str) -> int:
        if self._client is None:
            raise MediumFault("unreachable")
        size: int = self._client.get_size(name)
        if reason_of(size) == "unreachable":
            self._failed("unreachable")
            raise MediumFault("unreachable")
        return size

    def _remove(self, keys: Sequence[bytes]) -> list[Done]:
        done = []
        for key in keys:
            code = self._client.remove(self._name(key), True)
            reason = reason_of(code) if code < 0 else ""
            if reason in ("", "gone"):
                self._own.pop(key, None)
                reason = ""
            done.append(Done(reason))
        return done


def _take(get: Get, parts: Any) -> str:
    """Copy what came where it belongs; the reason of a miss."""
    if isinstance(parts, int):
        return reason_of(parts)
    header, body = parts
    if header.tobytes() != encode_header(get.record):
        try:
            decode_header(header.tobytes())
        except MediumFault as fault:
            return fault.reason
        return "changed"  # another page of the same key has taken its place
    get.out[:] = body
    return ""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
