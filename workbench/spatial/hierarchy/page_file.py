"""The file of one page on disk, and the system calls that write, read and verify it.

    0        8       12      16      24      28      32       40
    | magic  |version|slices | bytes |key len|coded  | header sum | key | checksums | zeros |
    4096 * n                                                                        (aligned)
    | page bytes, or the blob of a codec with `coded` bytes ...                             |

Little endian; `header sum` is the xxh3-64 of the header with that field zero. The page begins at
a multiple of 4096, so that reads can bypass the page cache.
"""

import dataclasses
import errno
import os
import struct
from dataclasses import dataclass

import numpy as np
import xxhash

from workbench.cache.codec import Codec, CodecFault, RowPart, from_blob, to_blob
from workbench.cache.keys import PrivateKey, TierKey
from workbench.spatial.hierarchy.entries import slice_checksums

MAGIC = b"KVWBPAGE"
VERSION = 2
ALIGN = 4096
_HEAD = struct.Struct("<8sIIQIIQ")


class PageFault(Exception):
    """A file does not hold the page it should; `reason` is the word that is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class PageRecord:
    """What a header says: the key as bytes, the page's size, the checksum of each slice.

    `coded_bytes`: size of the codec's blob in place of the page, 0 where the page lies as it is.
    """

    key: bytes
    page_bytes: int
    checksums: tuple[int, ...]
    coded_bytes: int = 0


def encode_key(key: TierKey) -> bytes:
    """A key as bytes; the first byte keeps prefix and private keys apart."""
    if isinstance(key, PrivateKey):
        numbers = struct.pack("<QII", key.epoch, key.group, key.index)
        return b"R" + numbers + key.request_id.encode()
    return b"P" + key


def header_bytes(key_length: int, num_slices: int) -> int:
    """Size of the header, a multiple of 4096."""
    return -(-(_HEAD.size + key_length + 8 * num_slices) // ALIGN) * ALIGN


def encode_header(record: PageRecord) -> bytes:
    """Header of a page's file."""
    size = header_bytes(len(record.key), len(record.checksums))
    sums = struct.pack(f"<{len(record.checksums)}Q", *record.checksums)

    def build(header_sum: int) -> bytes:
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            len(record.checksums),
            record.page_bytes,
            len(record.key),
            record.coded_bytes,
            header_sum,
        )
        return (head + record.key + sums).ljust(size, b"\0")

    return build(xxhash.xxh3_64_intdigest(build(0)))


def write_file(
    path: str,
    record: PageRecord,
    page: np.ndarray,
    codec: Codec | None,
    device: str = "",
    parts: tuple[RowPart, ...] | None = None,
) -> tuple[int, tuple[int, ...]]:
    """Create `path` with a page; returns its real bytes (st_blocks * 512) and its checksums.

    With a codec its blob is written where it is smaller than the page; a lossy one, which needs
    `parts`, changes the checksums to those of what will be read back.
    `device`: write the page there instead, for tests (`/dev/full` fails as a full disk does).
    Raises OSError, and CodecFault for a page that the codec does not take.
    """
    data: memoryview = memoryview(page)  # type: ignore[arg-type]
    if codec is not None:
        blob = to_blob(codec, page, parts)
        if len(blob) < page.nbytes:
            data = memoryview(blob)
            record = dataclasses.replace(record, coded_bytes=len(blob))
            if codec.numerics:
                back = np.empty_like(page)
                from_blob(codec, memoryview(blob), back)
                checksums = slice_checksums(back, len(record.checksums))
                record = dataclasses.replace(record, checksums=checksums)
    header = encode_header(record)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags, 0o600)
    try:
        size = len(header) + data.nbytes
        os.posix_fallocate(file, 0, size)  # a full disk shows before writing
        _write_all(file, header, 0)
        if device:
            target = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(target, data)
            finally:
                os.close(target)
        _write_all(file, data, len(header))
        return os.fstat(file).st_blocks * 512, record.checksums
    finally:
        os.close(file)


def read_file(path: str, record: PageRecord, page: np.ndarray, codec: Codec | None) -> None:
    """Read the page that `record` describes into `page` and verify it (PageFault, OSError)."""
    header = bytearray(header_bytes(len(record.key), len(record.checksums)))
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        got = os.preadv(file, [header, memoryview(page)], 0)  # type: ignore[arg-type]
        if got < len(header):
            raise PageFault("truncated")
        coded_bytes = _HEAD.unpack_from(header)[5]
        if header != encode_header(dataclasses.replace(record, coded_bytes=coded_bytes)):
            raise PageFault("corrupt" if bytes(header[:8]) == MAGIC else "foreign")
        size = len(header) + (coded_bytes or page.nbytes)
        while got < size:
            rest = memoryview(page)[got - len(header) : size - len(header)]  # type: ignore[arg-type]
            count = os.preadv(file, [rest], got)
            if count == 0:
                raise PageFault("truncated")
            got += count
    finally:
        os.close(file)
    if coded_bytes:
        _decode(page, coded_bytes, codec)
    if slice_checksums(page, len(record.checksums)) != record.checksums:
        raise PageFault("corrupt")


def _decode(page: np.ndarray, coded_bytes: int, codec: Codec | None) -> None:
    """The blob was read to where the page belongs: it is smaller, so it is copied out first."""
    if codec is None:
        raise PageFault("foreign")
    try:
        from_blob(codec, memoryview(page[:coded_bytes].tobytes()), page)
    except CodecFault as error:
        raise PageFault(error.reason) from None


def fault_reason(error: Exception) -> str:
    """The word a fault is counted under."""
    if isinstance(error, (PageFault, CodecFault)):
        return error.reason
    words = {
        errno.ENOENT: "deleted",
        errno.ENOSPC: "disk_full",
        errno.EDQUOT: "disk_full",
        errno.EFBIG: "disk_full",
        errno.EROFS: "read_only",
        errno.EACCES: "unreadable",
        errno.EPERM: "unreadable",
        errno.ELOOP: "unreadable",
        errno.EISDIR: "foreign",
    }
    return words.get(getattr(error, "errno", 0) or 0, "io_error")


def _write_all(file: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count
