"""What a codec is: a page's bytes to fewer bytes on a slower tier, and back.

    0       4        6       7         8           16        24
    | magic |version | codec | planes  | raw bytes | payload sum | payload ...

Little endian. A blob says by itself what it is: no pickle, and a foreign or damaged one is refused.
"""

import struct
from typing import Protocol

import numpy as np
import xxhash

MAGIC = b"KVCZ"
VERSION = 1
_HEAD = struct.Struct("<4sHBBQQ")


class CodecFault(Exception):
    """A blob is not what it should be; `reason` is the word a tier counts it under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Codec(Protocol):
    """Encodes one page. `number` names it in a blob for ever; a lossless one has no numerics tag.

    Implementations are used by one thread at a time.
    """

    name: str
    number: int
    numerics: str

    def encode(self, page: np.ndarray) -> tuple[bytes, int]:
        """uint8 [page_bytes] to (payload, planes): `planes` is kept in the header."""

    def decode(self, payload: memoryview, planes: int, page: np.ndarray) -> None:
        """Fill uint8 [page_bytes] from a payload; CodecFault if it does not fit."""


def to_blob(codec: Codec, page: np.ndarray) -> bytes:
    """A page as a self-describing blob."""
    payload, planes = codec.encode(page)
    digest = xxhash.xxh3_64_intdigest(payload)
    head = _HEAD.pack(MAGIC, VERSION, codec.number, planes, page.nbytes, digest)
    return head + payload


def from_blob(codec: Codec, blob: memoryview, page: np.ndarray) -> None:
    """Fill `page` from a blob of this codec; CodecFault names what is wrong with it."""
    if len(blob) < _HEAD.size:
        raise CodecFault("truncated")
    magic, version, number, planes, raw_bytes, digest = _HEAD.unpack_from(blob)
    if magic != MAGIC or version != VERSION or number != codec.number:
        raise CodecFault("foreign")
    payload = blob[_HEAD.size :]
    if raw_bytes != page.nbytes or xxhash.xxh3_64_intdigest(payload) != digest:
        raise CodecFault("corrupt")
    codec.decode(payload, planes, page)
