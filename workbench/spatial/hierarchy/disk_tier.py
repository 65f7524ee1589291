"""G3: pages as files on local disk, one file an entry, under a hard cap on real bytes."""

import contextlib
import hashlib
import os
import threading

import numpy as np

from workbench.cache.codec import Codec, CodecFault
from workbench.cache.keys import TierKey
from workbench.clock import Clock
from workbench.errors import IntegrityError
from workbench.spatial.hierarchy.bandwidth import TransferFit
from workbench.spatial.hierarchy.disk_folder import DiskFolder
from workbench.spatial.hierarchy.entries import Entry, EntryTable, State, slice_checksums
from workbench.spatial.hierarchy.io_thread import IoThread, Outcome
from workbench.spatial.hierarchy.page_file import (
    ALIGN,
    PageRecord,
    encode_key,
    fault_reason,
    header_bytes,
    read_file,
    write_file,
)

KEY_BYTES_HINT = 33
PROBE_BYTES = (4096, 65536, 1048576) * 2


class DiskTier:
    """Index (engine's thread) and files (I/O thread) of one folder.

    The cap is kept twice. The index reserves the whole file before its write is queued; and the
    I/O thread, which deletes before it writes, refuses a write that would lift the real bytes
    (st_blocks * 512) above the cap, whatever the index believed.
    """

    def __init__(self, folder: DiskFolder | None, capacity_bytes: int, io: IoThread | None) -> None:
        self.folder = folder
        self.table = EntryTable("G3", capacity_bytes, self._release)
        self.codec: Codec | None = None  # of pages written from now on
        self._codecs: dict[str, Codec | None] = {}  # of each file
        self.write_to = ""  # fault injection: the next page goes to this device instead
        self._io = io
        self._guard = threading.Lock()
        self._real: dict[str, int] = {}  # file name -> real bytes
        self._real_bytes = 0
        self._stuck: set[str] = set()  # files that could not be deleted
        self._cap_bytes = capacity_bytes
        self._slack_bytes = 0  # what the file system charges above the file's size

    @classmethod
    def closed(cls) -> "DiskTier":
        """The tier that is switched off."""
        return cls(None, 0, None)

    @property
    def on(self) -> bool:
        """Whether pages can be stored."""
        return self.folder is not None

    @property
    def place(self) -> str:
        """The folder, empty when off."""
        return self.folder.path if self.folder is not None else ""

    @property
    def real_bytes(self) -> int:
        """Bytes the tier's files take on disk."""
        with self._guard:
            return self._real_bytes

    def key_of(self, entry: Entry) -> TierKey:
        """The key an entry of another tier has here: a lossy codec makes other bytes of a row."""
        lossy = self.codec is not None and self.codec.numerics
        return entry.coded.key if lossy and entry.coded is not None else entry.key

    def charge(self, page_bytes: int, num_slices: int, key_bytes: int = KEY_BYTES_HINT) -> int:
        """Bytes to reserve for a page: header and page in whole blocks."""
        size = header_bytes(key_bytes, num_slices) + -(-page_bytes // ALIGN) * ALIGN
        return size + self._slack_bytes

    def file_name(self, entry: Entry) -> str:
        """Name of an entry's file; the generation keeps it apart from every earlier one."""
        digest = hashlib.sha256(encode_key(entry.key)).hexdigest()[:32]
        return f"page-{digest}-{entry.generation}.kv"

    def file_path(self, entry: Entry) -> str:
        """Path of an entry's file."""
        return os.path.join(self.place, entry.file_name)

    def set_capacity(self, capacity_bytes: int) -> None:
        """Change the cap; the caller has evicted to it, and the deletions run before it counts."""
        self.table.capacity_bytes = capacity_bytes
        if self._io is not None:
            self._io.submit(lambda: self._set_cap(capacity_bytes), _nothing)

    def write(self, entry: Entry, page: np.ndarray, clock: Clock) -> Outcome:
        """Write a page under a temporary name and rename it (I/O thread)."""
        start_s = clock.now_s()
        record = PageRecord(encode_key(entry.key), entry.page_bytes, entry.checksums)
        temporary = os.path.join(self.place, f"writing-{entry.generation}.tmp")
        device, self.write_to = self.write_to, ""
        need = self.charge(entry.page_bytes, len(entry.checksums), len(record.key))
        with self._guard:
            if self._real_bytes + need > self._cap_bytes:
                return Outcome("over_cap", start_s, clock.now_s() - start_s)
        try:
            codec = entry_codec(self.codec, entry)
            parts = entry.coded.parts if entry.coded is not None else None
            real, checksums = write_file(temporary, record, page, codec, device, parts)
            self._slack_bytes = max(self._slack_bytes, real - (need - self._slack_bytes))
            with self._guard:
                if self._real_bytes + real > self._cap_bytes:
                    os.unlink(temporary)
                    return Outcome("over_cap", start_s, clock.now_s() - start_s)
                os.rename(temporary, self.file_path(entry))
                self._real[entry.file_name] = real
                self._codecs[entry.file_name] = codec
                self._real_bytes += real
        except (OSError, CodecFault) as error:
            # The fault is told below; what may be left is deleted when the folder closes.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return Outcome(fault_reason(error), start_s, clock.now_s() - start_s)
        return Outcome("", start_s, clock.now_s() - start_s, real, checksums)

    def read(self, entry: Entry, page: np.ndarray, clock: Clock) -> Outcome:
        """Read and verify a page (I/O thread)."""
        start_s = clock.now_s()
        record = PageRecord(encode_key(entry.key), entry.page_bytes, entry.checksums)
        reason = ""
        try:
            codec = self._codecs.get(entry.file_name)
            read_file(self.file_path(entry), record, page, codec)
        except Exception as error:
            reason = fault_reason(error)
        return Outcome(reason, start_s, clock.now_s() - start_s)

    def probe(self, clock: Clock, load: TransferFit, store: TransferFit) -> None:
        """Seed the fits with real writes and reads of three sizes (at most about 0.2 s)."""
        begin_s = clock.now_s()
        for generation, page_bytes in enumerate(PROBE_BYTES, 1):
            if clock.now_s() - begin_s > 0.15 or self.charge(page_bytes, 1) > self._cap_bytes:
                return
            page = np.ones(page_bytes, dtype=np.uint8)
            sums = slice_checksums(page, 1)
            entry = Entry(b"probe", page_bytes, 0, sums, generation, State.WRITING)
            entry.file_name = f"page-{0:032x}-{generation}.kv"
            wrote = self.write(entry, page, clock)
            if not wrote.reason:
                store.observe(page_bytes, wrote.seconds)
                got = self.read(entry, page, clock)
                if not got.reason:
                    load.observe(page_bytes, got.seconds)
            self._unlink(entry)

    def close(self) -> None:
        """Delete every file and the folder; the I/O thread must be idle."""
        if self.folder is not None:
            self.folder.close()
            self.folder = None
        with self._guard:
            self._real.clear()
            self._codecs.clear()
            self._real_bytes = 0

    def check(self, idle: bool, strict: bool) -> None:
        """Raise IntegrityError if files, their counted bytes and the index disagree (I10).

        `strict`: also when a file is missing or smaller, which outside damage may cause.
        """
        self.table.check()
        with self._guard:
            if self._real_bytes > self._cap_bytes or self._real_bytes != sum(self._real.values()):
                raise IntegrityError(
                    f"G3's files take {self._real_bytes} bytes, above its cap of {self._cap_bytes}"
                )
        if not idle or self.folder is None:
            return
        listed = {}
        for name in self.folder.names():
            with contextlib.suppress(OSError):  # gone since the listing: nothing to count
                listed[name] = os.lstat(os.path.join(self.place, name)).st_blocks * 512
        indexed = {entry.file_name: entry.charged_bytes for entry in self.table.all_entries()}
        for name in self._stuck:
            listed.pop(name, None)
        orphans = sorted(set(listed) - set(indexed))
        if orphans:
            raise IntegrityError(f"G3's folder holds {orphans[0]!r}, which its index does not know")
        if indexed != {name: size for name, size in self._real.items() if name not in self._stuck}:
            raise IntegrityError("G3's index and its counted files differ")
        bigger = [name for name in listed if listed[name] > indexed[name]]
        if bigger or (strict and listed != indexed):
            raise IntegrityError(
                f"G3 counts {sum(indexed.values())} bytes but its folder holds "
                f"{sum(listed.values())}"
            )

    def _set_cap(self, capacity_bytes: int) -> Outcome:
        with self._guard:
            self._cap_bytes = capacity_bytes
        return Outcome()

    def _release(self, entry: Entry) -> None:
        if self._io is not None and self.folder is not None:
            self._io.submit(lambda: self._unlink(entry), _nothing)

    def _unlink(self, entry: Entry) -> Outcome:
        try:
            # A file that is not there is what we want: its write failed, or somebody deleted it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.file_path(entry))
        except OSError as error:
            self._stuck.add(entry.file_name)  # still counted, so that the cap holds
            return Outcome(fault_reason(error))
        with self._guard:
            self._codecs.pop(entry.file_name, None)
            self._real_bytes -= self._real.pop(entry.file_name, 0)
        return Outcome()


def entry_codec(codec: Codec | None, entry: Entry) -> Codec | None:
    """The codec of an entry's file: what belongs to one request never goes through a lossy one."""
    if codec is not None and codec.numerics and entry.coded is None:
        return None
    return codec


def _nothing(outcome: Outcome) -> None:
    """Continuation of transfers that nobody waits for."""
