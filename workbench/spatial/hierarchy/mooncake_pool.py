"""A pool on a real Mooncake Store: one immutable object a page, header before payload, over TCP.

    kvw1:<hex>    a shared page          kvw1-private:<hex>    a request's own

The master evicts by itself (watermark 0.9, leases of 10 s for what was just read), so "gone" is a
miss. Without an address the pool starts a master and a store of its own, which end with it.
"""

import math
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workbench.spatial.hierarchy.batches import in_batches
from workbench.spatial.hierarchy.medium import Done, Get, MediumFault, PageRecord, Put, is_private
from workbench.spatial.hierarchy.mooncake_library import TAKEN, reason_of
from workbench.spatial.hierarchy.mooncake_link import ANSWER_S, BATCH_BYTES, MooncakeLink
from workbench.spatial.hierarchy.record_header import (
    PROBE_BYTES,
    decode_header,
    encode_header,
    header_bytes,
    needed_bytes,
    storage_name,
    total_bytes,
)

PAGES, PRIVATE = "kvw1:", "kvw1-private:"
BATCH_KEYS = 256


class MooncakePool:
    """A `Medium` on Mooncake Store; `address` as in `mooncake_library`, empty for a private one.

    MediumFault with one sentence if it is not installed, does not start or does not answer.
    """

    shared = True
    persistent = False
    way = "Mooncake over TCP"

    def __init__(self, address: str = "", capacity_bytes: int = 0) -> None:
        self._owner = secrets.token_bytes(16)
        self._own: dict[bytes, int] = {}  # bytes of what this process has put
        self._capacity_bytes = capacity_bytes
        self._link = MooncakeLink(address, capacity_bytes)
        self.place = self._link.place

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
        for part in in_batches([PROBE_BYTES] * len(keys), BATCH_BYTES, BATCH_KEYS):
            found = self._safe_records([self._name(key) for key in keys[part]])
            records += [
                record if record is not None and record.key == key else None
                for key, record in zip(keys[part], found, strict=True)
            ]
        return records

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Whole shared pages as the master names them over HTTP; their order of use is not told."""
        master = self._link.master
        url = f"http://{master.host}:{master.admin_port}/get_all_keys"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
                text = answer.read().decode(errors="replace")
        except (urllib.error.URLError, OSError):
            return  # a master that shows no HTTP to us
        names = [name for name in text.split() if name.startswith(PAGES)]
        for part in in_batches([PROBE_BYTES] * len(names), BATCH_BYTES, BATCH_KEYS):
            found = self._safe_records(names[part])
            for name, record in zip(names[part], found, strict=True):
                if record is not None and self._name(record.key) == name:
                    yield record, total_bytes(record)

    def resize(self, capacity_bytes: int) -> bool:
        """A private store has to be opened anew; the cap of another is not ours to set."""
        return self._link.companion is None or capacity_bytes == self._capacity_bytes

    @property
    def real_bytes(self) -> int:
        """Bytes of the pages that this process has put and the store still has."""
        own = list(self._own)
        try:
            there = self._link.client.batch_is_exist([self._name(key) for key in own])
        except MediumFault:
            return 0
        for key, found in zip(own, there, strict=True):
            if found == 0:
                del self._own[key]
        return sum(self._own.values())

    def close(self, keep: bool) -> None:
        """Delete the private pages and let the store go; a private one ends."""
        if self._link.companion is None:
            self.remove([key for key in self._own if is_private(key)])
        self._link.close()

    @property
    def can_unplug(self) -> bool:
        """One of this engine's own."""
        return self._link.companion is not None

    def unplug(self) -> None:
        """End the master and the store."""
        if self._link.companion is not None:
            self._link.companion.unplug()

    def plug_in(self) -> None:
        """Let the next operation that fails start them anew."""
        if self._link.companion is not None:
            self._link.companion.plug_in()
            self._link.started_at_s = -math.inf

    def _name(self, key: bytes) -> str:
        return (PRIVATE if is_private(key) else PAGES) + storage_name(key, self._owner).hex()

    def _batches(
        self,
        items: Sequence[Any],
        size: Callable[[Any], int],
        run: Callable[[Sequence[Any]], list[Done]],
    ) -> list[Done]:
        done: list[Done] = []
        for part in in_batches([size(item) for item in items], BATCH_BYTES, BATCH_KEYS):
            try:
                answers = run(items[part])
            except MediumFault as fault:
                answers = [Done(fault.reason)] * len(items[part])
            done += answers
            if any(each.reason == "unreachable" for each in answers):
                self._link.revive()
        return done

    def _put(self, puts: Sequence[Put]) -> list[Done]:
        parts = [(np.frombuffer(encode_header(put.record), np.uint8), put.payload) for put in puts]
        codes = self._link.put([self._name(put.record.key) for put in puts], parts)
        done = []
        for put, code in zip(puts, codes, strict=True):
            reason = reason_of(code) if code < 0 and code != TAKEN else ""
            size = 0 if reason else total_bytes(put.record)
            if not reason:
                self._own[put.record.key] = size
            done.append(Done(reason, size))
        return done

    def _get(self, gets: Sequence[Get]) -> list[Done]:
        wanted = [
            [(0, begin), (begin + get.offset, get.out.nbytes)]
            for get, begin in ((get, header_bytes(get.record)) for get in gets)
        ]
        found = self._link.get([self._name(get.record.key) for get in gets], wanted)
        return [Done(_take(get, parts)) for get, parts in zip(gets, found, strict=True)]

    def _safe_records(self, names: Sequence[str]) -> list[PageRecord | None]:
        """The record of each object that is a whole page; none of any where nobody answers."""
        try:
            return self._records(names)
        except MediumFault:
            self._link.revive()
            return [None] * len(names)

    def _records(self, names: Sequence[str]) -> list[PageRecord | None]:
        sizes = [self._link.size(name) for name in names]
        there = [at for at, size in enumerate(sizes) if size > 0]
        heads = self._link.get(
            [names[at] for at in there], [[(0, min(PROBE_BYTES, sizes[at]))] for at in there]
        )
        copies = [bytes(head[0]) if isinstance(head, list) else b"" for head in heads]
        records: list[PageRecord | None] = [None] * len(names)
        for at, data in zip(there, copies, strict=True):
            try:
                if len(data) < needed_bytes(data):
                    (more,) = self._link.get([names[at]], [[(0, needed_bytes(data))]])
                    data = bytes(more[0]) if isinstance(more, list) else data
                record = decode_header(data)
            except MediumFault:  # no page of ours: it is not found
                continue
            records[at] = record if total_bytes(record) == sizes[at] else None
        return records

    def _remove(self, keys: Sequence[bytes]) -> list[Done]:
        done = []
        for key in keys:
            code = self._link.client.remove(self._name(key), True)
            reason = reason_of(code) if code < 0 else ""
            if reason in ("", "gone"):
                self._own.pop(key, None)
                reason = ""
            done.append(Done(reason))
        return done


def _take(get: Get, parts: list[np.ndarray] | int) -> str:
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
