"""The file of one page on disk, and the system calls that write, read and verify it.

    0        8       12      16      24      28      32       40
    | magic  |version|slices | bytes |key len|coded  | header sum | key | checksums | zeros |
    4096 * n                                                                        (aligned)
    | page bytes, or the blob of a codec with `coded` bytes ...                             |

Little endian; `header sum` is the xxh3-64 of the header with that field zero. The page begins at
a multiple of 4096, so that reads can bypass the page cache.
"""

import errno
import os
import struct

import numpy as np
import xxhash

from workbench.cache.codec import CodecFault
from workbench.spatial.hierarchy.medium import MediumFault, PageRecord

MAGIC = b"KVWBPAGE"
VERSION = 2
ALIGN = 4096
_HEAD = struct.Struct("<8sIIQIIQ")


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
            record.payload_bytes if record.codec else 0,
            header_sum,
        )
        return (head + record.key + sums).ljust(size, b"\0")

    return build(xxhash.xxh3_64_intdigest(build(0)))


def write_file(path: str, record: PageRecord, payload: np.ndarray, device: str = "") -> int:
    """Create `path` with a page's payload; returns its real bytes (st_blocks * 512).

    `device`: write the payload there instead, for tests (`/dev/full` fails as a full disk does).
    Raises OSError.
    """
    data: memoryview = memoryview(payload)  # type: ignore[arg-type]
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
        return os.fstat(file).st_blocks * 512
    finally:
        os.close(file)


def read_payload(path: str, record: PageRecord, offset: int, out: np.ndarray) -> None:
    """Fill `out` from the payload that `record` describes (MediumFault, OSError)."""
    header = bytearray(header_bytes(len(record.key), len(record.checksums)))
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.preadv(file, [header], 0) < len(header):
            raise MediumFault("truncated")
        if header != encode_header(record):
            raise MediumFault("corrupt" if bytes(header[:8]) == MAGIC else "foreign")
        rest, at = memoryview(out), len(header) + offset  # type: ignore[arg-type]
        while rest:
            count = os.preadv(file, [rest], at)
            if count == 0:
                raise MediumFault("truncated")
            rest, at = rest[count:], at + count
    finally:
        os.close(file)


def fault_reason(error: Exception) -> str:
    """The word a fault is counted under."""
    if isinstance(error, (MediumFault, CodecFault)):
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
