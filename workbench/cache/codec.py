"""What a codec is: a page's bytes to fewer bytes on a slower tier, and back.

    0       4        6       7         8           16        24
    | magic |version | codec | planes  | raw bytes | payload sum | payload ...

Little endian. A blob says by itself what it is: no pickle, and a foreign or damaged one is refused.
"""

import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash
from kvkernels.layout import PageSpec

from workbench.cache.keys import PrefixKey

MAGIC = b"KVCZ"
VERSION = 1
_HEAD = struct.Struct("<4sHBBQQ")


class CodecFault(Exception):
    """A blob is not what it should be; `reason` is the word a tier counts it under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class RowPart:
    """One page of a row, as it follows the others: its class, and whose layers and heads it has."""

    spec: PageSpec
    first_layer: int
    first_head: int


@dataclass(frozen=True)
class CodedRow:
    """What a lossy codec needs to know of a row: its parts in order, and the key of what it gives.

    The bytes that come back are not those that went, so they have a key of their own.
    """

    key: PrefixKey
    parts: tuple[RowPart, ...]


class Codec(Protocol):
    """Encodes one page. `number` names it in a blob for ever; a lossless one has no numerics tag.

    Implementations are used by one thread at a time. `shared_bytes`: memory of what its blobs have
    in common (probability tables). `alone`: no other process reads the blobs, so they may need what
    was learned here.
    """

    name: str
    number: int
    numerics: str
    shared_bytes: int
    alone: bool

    def encode(
        self, page: np.ndarray, parts: tuple[RowPart, ...] | None = None
    ) -> tuple[bytes, int]:
        """uint8 [page_bytes] to (payload, planes): `planes` is kept in the header.

        `parts` tells a lossy codec which numbers lie where; CodecFault without them.
        """

    def decode(self, payload: memoryview, planes: int, page: np.ndarray) -> None:
        """Fill uint8 [page_bytes] from a payload; CodecFault if it does not fit."""


def to_blob(codec: Codec, page: np.ndarray, parts: tuple[RowPart, ...] | None = None) -> bytes:
    """A page as a self-describing blob."""
    payload, planes = codec.encode(page, parts)
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
