"""One page as one object: created once, read by ranges, and known by its header.

| header | layer 0 | layer 1 | ... |      the header's size follows from the record
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import LocalStore, S3Store

from workbench.spatial.hierarchy.medium import Get, MediumFault, PageRecord, Put
from workbench.spatial.hierarchy.object_address import fault_reason
from workbench.spatial.hierarchy.record_header import (
    PROBE_BYTES,
    decode_header,
    encode_header,
    header_bytes,
    needed_bytes,
    total_bytes,
)

COALESCE_BYTES = 4096  # ranges closer than this are one request
FAULTS = (BaseError, OSError, ValueError, MediumFault)


class PageObjects:
    """Pages of one storage, by path, moved by its own client."""

    def __init__(self, store: LocalStore | S3Store) -> None:
        self._store = store
        self.way = "files" if isinstance(store, LocalStore) else "HTTP ranges"

    def create(self, path: str, put: Put) -> str:
        """Create an object where none is; a reason, or one of FAULTS, where that cannot be."""
        header = encode_header(put.record)
        parts: Any = [header, memoryview(put.payload)]  # type: ignore[arg-type]
        try:
            self._write(path, parts)
        except (AlreadyExistsError, PreconditionError):
            return self._settle_existing(path, put.record.key, header, parts)
        return ""

    def read(self, path: str, gets: Sequence[Get]) -> str:
        """Read ranges of one object; returns the reason of a fault."""
        record = gets[0].record
        begin = header_bytes(record)
        # A read from the payload's start brings the header too: it lies right before it.
        extra = [begin if get.offset == 0 else 0 for get in gets]
        starts = [begin + get.offset - more for get, more in zip(gets, extra, strict=True)]
        lengths = [get.out.nbytes + more for get, more in zip(gets, extra, strict=True)]
        try:
            if len(gets) == 1:
                parts = [obstore.get_range(self._store, path, start=starts[0], length=lengths[0])]
            else:
                parts = obstore.get_ranges(
                    self._store, path, starts=starts, lengths=lengths, coalesce=COALESCE_BYTES
                )
            for get, part, more, length in zip(gets, parts, extra, lengths, strict=True):
                data = np.frombuffer(memoryview(part), np.uint8)  # type: ignore[arg-type]
                if data.nbytes != length:
                    return "truncated"
                if more and data[:more].tobytes() != encode_header(record):
                    decode_header(data[:more].tobytes())
                    return "changed"  # another page of the same key has taken its place
                get.out[:] = data[more:]
            return ""
        except FAULTS as error:
            return fault_reason(error)

    def num_requests(self, gets: Sequence[Get]) -> int:
        """Range requests that `read` makes: those of an object that lie close together are one."""
        spans = sorted((get.offset, get.offset + get.out.nbytes) for get in gets)
        gaps = (begin - end for (_, end), (begin, _) in pairwise(spans))
        return 1 + sum(gap > COALESCE_BYTES for gap in gaps)

    def record(self, path: str) -> PageRecord | None:
        """The record of a whole object; None for anything else."""
        try:
            found = obstore.get(self._store, path, options={"range": (0, PROBE_BYTES)})
            data, size = bytes(found.bytes()), found.meta["size"]
            record = decode_header(self._header_at(path, data))
        except FAULTS:
            return None
        return record if total_bytes(record) == size else None

    def _write(self, path: str, parts: Any) -> None:
        """Make an object of header and payload; AlreadyExistsError where one is, or a fault."""
        obstore.put(self._store, path, parts, mode="create")

    def _settle_existing(self, path: str, key: bytes, header: bytes, parts: Any) -> str:
        """What lies there already: a whole page stays, a broken object is replaced."""
        try:
            found = obstore.get(self._store, path, options={"range": (0, len(header))})
            data, size = bytes(found.bytes()), found.meta["size"]
            if data != header:
                data = self._header_at(path, data)
            record = decode_header(data)
            if size == total_bytes(record) and record.key == key:
                return ""  # perhaps of another engine's bytes, which are as good
        except FileNotFoundError:
            return "gone"
        except MediumFault as error:
            if error.reason == "other_version":
                return error.reason
        obstore.put(self._store, path, parts, use_multipart=False)
        return ""

    def _header_at(self, path: str, data: bytes) -> bytes:
        """The whole header of an object that begins with `data`."""
        size = needed_bytes(data)
        if size <= len(data):
            return data
        return bytes(obstore.get_range(self._store, path, start=0, end=size))
