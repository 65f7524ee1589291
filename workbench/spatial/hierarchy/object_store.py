"""Object storage as a tier (G4): one immutable object a page, in a folder or an S3 bucket.

    pages-v1/<hex>             a shared page        | header | layer 0 | layer 1 | ... |
    private-v1/<owner>/<hex>   a request's own page, gone when its engine ends

A page is layer-major already, so that a range request brings any layers (ObjectCache, arXiv
2605.22850), and the header's size is known from the record: no request is spent on it. Objects are
created only where none is (If-None-Match), so that two engines cannot change each other's pages.

Requests are blocking calls from a few threads: over a local folder they took 0.05 ms each, those of
the client's asynchronous interface 0.12 ms.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import obstore

from workbench.clock import Clock, RealClock
from workbench.spatial.hierarchy.io_counts import IoCounts
from workbench.spatial.hierarchy.medium import Done, Get, MediumFault, PageRecord, Put, is_private
from workbench.spatial.hierarchy.object_address import (
    OpenedStore,
    fault_reason,
    open_store,
)
from workbench.spatial.hierarchy.object_folder import hide_folder, is_own, show_folder
from workbench.spatial.hierarchy.object_ledger import ObjectLedger
from workbench.spatial.hierarchy.object_page import FAULTS, PageObjects
from workbench.spatial.hierarchy.object_transports import open_pages
from workbench.spatial.hierarchy.record_header import (
    storage_name,
    total_bytes,
)

PAGES = "pages-v1/"
PRIVATE = "private-v1/"
FOLDER_WORKERS, BUCKET_WORKERS = 4, 16
DISK_BLOCK = 4096
LEFTOVER_S = 86_400.0  # private objects older than a day belong to engines that died
RELIST_S = 5.0  # a full store is counted anew at most this often
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class ObjectStore:
    """A `Medium` on object storage; `address` as in `object_address`.

    `capacity_bytes` is a hard cap on all our objects there, counted by listing them; 0 = none.
    MediumFault with one sentence if the storage cannot be reached or does not let us in.
    """

    shared = True
    persistent = True

    def __init__(
        self,
        address: str = "",
        capacity_bytes: int = 0,
        clock: Clock | None = None,
        transport: str = "direct",
    ) -> None:
        self._opened: OpenedStore = open_store(address)
        self._store = self._opened.store
        self._pages = open_pages(self._opened, transport)
        self._next: PageObjects = self._pages
        self._transport = transport
        self.place = self._opened.place
        self._clock = clock or RealClock()
        self._owner = secrets.token_bytes(16)
        self.counts = IoCounts()  # requests for pages, and the bytes of those
        self._own: set[bytes] = set()  # keys of what this process has put
        self._capacity_bytes = capacity_bytes
        self._ledger = ObjectLedger(capacity_bytes)
        self._is_folder = bool(self._opened.folder)
        try:
            self._ledger.replace(self._list_sizes())
            self._sweep()
        except FAULTS as error:
            reason = fault_reason(error)
            raise MediumFault(reason, self._refusal(reason)) from None
        self._listed_at_s = self._clock.now_s()
        workers = FOLDER_WORKERS if self._is_folder else BUCKET_WORKERS
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="kv-objects")

    def charge_bytes(self, record: PageRecord) -> int:
        """Size of the object, in whole blocks where it is a file."""
        size = total_bytes(record)
        return -(-size // DISK_BLOCK) * DISK_BLOCK if self._is_folder else size

    def put(self, puts: Sequence[Put]) -> list[Done]:
        """Create objects; a whole one of that key, if it is there already, stays."""
        self.counts.num_writes += len(puts)
        self.counts.written_bytes += sum(put.payload.nbytes for put in puts)
        return self._map(self._put, puts)

    def get(self, gets: Sequence[Get]) -> list[Done]:
        """Read ranges, those of one object in one call."""
        groups: dict[int, list[int]] = {}
        for index, get in enumerate(gets):
            groups.setdefault(id(get.record), []).append(index)
        done = [Done()] * len(gets)
        self.counts.num_reads += sum(
            self._pages.num_requests([gets[at] for at in members]) for members in groups.values()
        )
        self.counts.read_bytes += sum(get.out.nbytes for get in gets)

        def read(indices: list[int]) -> None:
            mine = [gets[index] for index in indices]
            outcome = Done(self._pages.read(self._path(mine[0].record.key), mine))
            for index in indices:
                done[index] = outcome

        self._map(read, list(groups.values()))
        return done

    def remove(self, keys: Sequence[bytes]) -> list[Done]:
        """Delete objects."""
        return self._map(self._remove, keys)

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """Read the first KiB of each object."""
        return self._map(self._probe, keys)

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Whole shared pages, those created first, first; what is not one is passed over."""
        try:
            metas = sorted(self._list(PAGES), key=lambda meta: meta["last_modified"])
        except FAULTS:
            return  # a new process then finds none, as with an empty store
        for start in range(0, len(metas), BUCKET_WORKERS * 4):
            batch = metas[start : start + BUCKET_WORKERS * 4]
            records = self._map(lambda meta: self._pages.record(meta["path"]), batch)
            for meta, record in zip(batch, records, strict=True):
                if record is not None and meta["path"] == self._path(record.key):
                    yield record, self._real_size(meta)

    @property
    def way(self) -> str:
        """How bytes move now."""
        return self._pages.way

    def prepare(self, transport: str) -> None:
        """Open the transport that `arrange` will take; MediumFault where it cannot be had."""
        self._next = self._pages
        if transport != self._transport:
            self._next = open_pages(self._opened, transport)
        self._transport = transport

    def arrange(self) -> None:
        """Move pages as prepared from now on."""
        self._pages = self._next

    def resize(self, capacity_bytes: int) -> bool:
        """Take a new cap."""
        self._capacity_bytes = capacity_bytes
        self._ledger.resize(capacity_bytes)
        return True

    @property
    def real_bytes(self) -> int:
        """Bytes of all our objects there, listed now (as counted before if that fails)."""
        try:
            sizes = self._list_sizes()
        except FAULTS:
            return self._ledger.used_bytes
        self._ledger.replace(sizes)
        return sum(sizes.values())

    def close(self, keep: bool) -> None:
        """Delete the private pages, and without `keep` all that this process has put."""
        self.remove([key for key in tuple(self._own) if not keep or is_private(key)])
        self._pool.shutdown()

    @property
    def can_unplug(self) -> bool:
        """A folder that nobody named but the workbench itself."""
        return self._is_folder and is_own(self._opened.folder)

    def unplug(self) -> None:
        """Put a file in the folder's place. OSError where that cannot be."""
        hide_folder(self._opened.folder)

    def plug_in(self) -> None:
        """Bring the folder back. OSError where that cannot be."""
        show_folder(self._opened.folder)

    can_fill = True  # the cap is ours, whoever else uses the storage

    def fill_up(self) -> None:
        """Take what lies there now as the cap."""
        self._ledger.resize(max(1, self.real_bytes))

    def make_room(self) -> None:
        """Take the cap that was set."""
        self._ledger.resize(self._capacity_bytes)

    def _map(self, run: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
        if len(items) < 2:
            return [run(item) for item in items]
        return list(self._pool.map(run, items))

    def _path(self, key: bytes) -> str:
        name = storage_name(key, self._owner).hex()
        folder = f"{PRIVATE}{self._owner.hex()}/" if is_private(key) else PAGES
        return f"{self._opened.prefix}{folder}{name}"

    def _put(self, put: Put) -> Done:
        path, charge = self._path(put.record.key), self.charge_bytes(put.record)
        if not self._reserve(charge):
            return Done("full")
        try:
            reason = self._pages.create(path, put)
            if reason:
                return Done(reason)
            real = self._stat_bytes(path, charge)
            self._own.add(put.record.key)
            self._ledger.add(path, real)
            return Done("", real)
        except FAULTS as error:
            return Done(fault_reason(error))
        finally:
            self._ledger.release(charge)

    def _remove(self, key: bytes) -> Done:
        path = self._path(key)
        reason = ""
        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            pass  # somebody else was faster, which is what was asked for
        except FAULTS as error:
            reason = fault_reason(error)
        if not reason:
            self._own.discard(key)
            self._ledger.remove(path)
        return Done(reason)

    def _probe(self, key: bytes) -> PageRecord | None:
        record = self._pages.record(self._path(key))
        return record if record is not None and record.key == key else None

    def _list(self, folder: str) -> list[Any]:
        chunks = obstore.list(self._store, self._opened.prefix + folder, chunk_size=1000)
        return [meta for chunk in chunks for meta in chunk]

    def _list_sizes(self) -> dict[str, int]:
        metas = self._list(PAGES) + self._list(PRIVATE)
        return {meta["path"]: self._real_size(meta) for meta in metas}

    def _real_size(self, meta: Any) -> int:
        return self._stat_bytes(meta["path"], meta["size"])

    def _stat_bytes(self, path: str, size: int) -> int:
        """What an object takes: a file's blocks, or the size of a bucket's object."""
        if not self._is_folder:
            return size
        try:
            return os.stat(os.path.join(self._opened.folder, path)).st_blocks * 512
        except FileNotFoundError:
            return 0

    def _reserve(self, num_bytes: int) -> bool:
        """Take room under the cap; others put and remove too, so a full store is counted anew."""
        for attempt in range(2):
            if self._ledger.reserve(num_bytes):
                return True
            stale = self._clock.now_s() - self._listed_at_s > RELIST_S
            if attempt == 0 and stale:
                self._listed_at_s = self._clock.now_s()
                _ = self.real_bytes
        return False

    def _sweep(self) -> None:
        """Delete what engines that died have left: private pages, and files half written."""
        old_s = self._clock.wall_s() - LEFTOVER_S
        for meta in self._list(PRIVATE):
            if meta["last_modified"].timestamp() < old_s:
                obstore.delete(self._store, meta["path"])
                self._ledger.remove(meta["path"])
        folder = os.path.join(self._opened.folder, PAGES)
        if self._is_folder and os.path.isdir(folder):
            with os.scandir(folder) as entries:
                for entry in entries:  # the client writes `name#1` and then renames it
                    if "#" in entry.name and entry.stat().st_mtime < old_s:
                        os.unlink(entry.path)

    def _refusal(self, reason: str) -> str:
        words = {
            "unauthorised": "did not accept the credentials in the environment",
            "gone": "has no such bucket or folder",
            "unreachable": "does not answer",
        }
        return f"object storage {self.place} {words.get(reason, f'cannot be used ({reason})')}"
