"""The header that stands before each page in the shared store, the remote pool and object storage.

    0       8        12      16          24             32       36       52           60
    | magic | version| slices| page bytes | payload bytes | key len| codec  | header sum | key ...
    | ... key | xxh3-64 of each slice | zeros up to a multiple of 64 |  payload ...

Little endian; `header sum` is the xxh3-64 of the header with that field zero. Its size follows from
the key's length and the number of slices, so who knows a record finds any slice without asking.
"""

import hashlib
import struct

import xxhash

from workbench.spatial.hierarchy.medium import MediumFault, PageRecord, is_private

MAGIC = b"KVWBREC\0"
VERSION = 1
ALIGN = 64
PROBE_BYTES = 1024  # holds the header of any page with up to 100 slices
MAX_KEY_BYTES = 4096
MAX_SLICES = 65_536
_HEAD = struct.Struct("<8sIIQQI16sQ")
_SUM_AT = _HEAD.size - 8


def header_bytes(record: PageRecord) -> int:
    """Size of a record's header, a multiple of 64; the payload follows it."""
    return _size(len(record.key), len(record.checksums))


def total_bytes(record: PageRecord) -> int:
    """Header and payload."""
    return header_bytes(record) + record.payload_bytes


def encode_header(record: PageRecord) -> bytes:
    """The header of a page (ValueError for a key, number of slices or codec it cannot hold)."""
    codec = record.codec.encode()
    if len(codec) > 16:
        raise ValueError(f"codec={record.codec!r}: its name takes at most 16 bytes")
    if len(record.key) > MAX_KEY_BYTES:
        raise ValueError(f"key of {len(record.key)} bytes: at most {MAX_KEY_BYTES}")
    if len(record.checksums) > MAX_SLICES:
        raise ValueError(f"checksums of {len(record.checksums)} slices: at most {MAX_SLICES}")
    sums = struct.pack(f"<{len(record.checksums)}Q", *record.checksums)
    numbers = (len(record.checksums), record.page_bytes, record.payload_bytes, len(record.key))
    head = _HEAD.pack(MAGIC, VERSION, *numbers, codec, 0)
    header = bytearray((head + record.key + sums).ljust(header_bytes(record), b"\0"))
    struct.pack_into("<Q", header, _SUM_AT, xxhash.xxh3_64_intdigest(header))
    return bytes(header)


def needed_bytes(data: bytes) -> int:
    """Size of the header that begins with `data`; MediumFault as `decode_header` has it."""
    if len(data) < _HEAD.size:
        raise MediumFault("truncated")
    magic, version, num_slices, _, _, key_length, _, _ = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MediumFault("foreign")
    if version != VERSION:
        raise MediumFault("other_version")
    if key_length > MAX_KEY_BYTES or num_slices > MAX_SLICES:
        raise MediumFault("corrupt")
    return _size(key_length, num_slices)


def decode_header(data: bytes) -> PageRecord:
    """The record of a header, which may be followed by other bytes.

    MediumFault with reason truncated, foreign, other_version or corrupt.
    """
    size = needed_bytes(data)
    if len(data) < size:
        raise MediumFault("truncated")
    _, _, num_slices, page_bytes, payload_bytes, key_length, codec, header_sum = _HEAD.unpack_from(
        data
    )
    unsigned = bytearray(data[:size])
    unsigned[_SUM_AT : _HEAD.size] = bytes(8)
    if xxhash.xxh3_64_intdigest(unsigned) != header_sum:
        raise MediumFault("corrupt")
    at = _HEAD.size + key_length
    return PageRecord(
        key=bytes(data[_HEAD.size : at]),
        page_bytes=page_bytes,
        checksums=struct.unpack_from(f"<{num_slices}Q", data, at),
        payload_bytes=payload_bytes,
        codec=codec.rstrip(b"\0").decode("utf-8", "replace"),
    )


def storage_name(key: bytes, owner: bytes) -> bytes:
    """What a medium calls a page: 32 bytes, from which neither key nor tenant can be told.

    A private key means something to one engine alone, so its name depends on `owner` too: two
    engines with a request of the same id never see each other's pages.
    """
    return hashlib.sha256(b"kvw-name|" + (owner if is_private(key) else b"") + b"|" + key).digest()


def _size(key_length: int, num_slices: int) -> int:
    return -(-(_HEAD.size + key_length + 8 * num_slices) // ALIGN) * ALIGN
