"""Codecs where pages go down to a medium and where they come up again (I/O thread)."""

from collections.abc import Callable

import numpy as np

from workbench.cache.codec import Codec, from_blob, to_blob
from workbench.cache.keys import TierKey
from workbench.cache.page_copy import slice_checksums
from workbench.errors import SettingError
from workbench.spatial.hierarchy.entries import Entry
from workbench.spatial.hierarchy.medium import MediumFault, PageRecord, Put, encode_key

MakeCodec = Callable[[str], Codec | None]


class CodecEdge:
    """The codec of pages written from now on, and those of pages written before."""

    def __init__(self) -> None:
        self.codec: Codec | None = None
        self._make: MakeCodec = lambda name: None
        self._by_name: dict[str, Codec | None] = {}

    def choose(self, name: str, make: MakeCodec, private: bool) -> None:
        """Encode with the named codec from now on; `private`: no other process reads the medium."""
        self._make = make
        self.codec = self._named(name)
        if self.codec is not None:
            self.codec.alone = private

    @property
    def numerics(self) -> str:
        """The tag of what a lossy codec gives back; empty where that is what it was given."""
        return self.codec.numerics if self.codec is not None else ""

    def key_of(self, entry: Entry) -> TierKey:
        """The key an entry of another tier has here: a lossy codec makes other bytes of a row."""
        return entry.coded.key if self.numerics and entry.coded is not None else entry.key

    def readable(self, record: PageRecord) -> bool:
        """Whether a page that an earlier process wrote can be decoded here."""
        if not record.codec:
            return True
        return self._named(record.codec) is not None

    def record(self, entry: Entry) -> PageRecord:
        """What an entry's page is as long as no codec has packed it."""
        return PageRecord(
            encode_key(entry.key), entry.page_bytes, entry.checksums, entry.page_bytes
        )

    def encode(self, entry: Entry, page: np.ndarray) -> Put:
        """What is to be written: the page, or its blob where that is smaller (CodecFault).

        What belongs to one request never goes through a lossy codec, which changes the checksums to
        those of what will be read back.
        """
        record, codec = self.record(entry), self.codec
        if codec is None or (codec.numerics and entry.coded is None):
            return Put(record, page)
        blob = to_blob(codec, page, entry.coded.parts if entry.coded is not None else None)
        if len(blob) >= page.nbytes:
            return Put(record, page)
        checksums = entry.checksums
        if codec.numerics:
            back = np.empty_like(page)
            from_blob(codec, memoryview(blob), back)
            checksums = slice_checksums(back, len(checksums))
        coded = PageRecord(record.key, entry.page_bytes, checksums, len(blob), codec.name)
        return Put(coded, np.frombuffer(blob, np.uint8))

    def decode(self, record: PageRecord, payload: np.ndarray, page: np.ndarray) -> None:
        """Fill a page from what was read and verify it (MediumFault, CodecFault)."""
        if record.codec:
            codec = self._named(record.codec)
            if codec is None:
                raise MediumFault("foreign")
            from_blob(codec, memoryview(payload), page)  # type: ignore[arg-type]
        if slice_checksums(page, len(record.checksums)) != record.checksums:
            raise MediumFault("corrupt")

    def forget(self) -> None:
        """Let go of what the blobs of a closed medium had in common."""
        self._by_name.clear()

    def _named(self, name: str) -> Codec | None:
        if name not in self._by_name:
            try:
                self._by_name[name] = self._make(name)
            except (KeyError, SettingError):  # written by an engine that knows more codecs
                self._by_name[name] = None
        return self._by_name[name]
