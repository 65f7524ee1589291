"""Where the bytes of a slow tier lie: one protocol for a disk file, a shared store, objects.

A medium knows nothing of HBM, of orders of eviction or of checksums: `SlowTier` chooses what to
write and what to remove, and verifies each slice that comes back. Operations come in batches, so
that a medium may put them in flight together (io_uring, pipelines, range requests).
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from workbench.cache.keys import PrivateKey, TierKey


class MediumFault(Exception):
    """A medium could not be opened, or an operation failed; `reason` is the word it is counted
    under, the message one sentence for people, without any secret."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True)
class PageRecord:
    """What is known of one page: the key as bytes, its size, the xxh3-64 of each equal slice.

    `checksums` are of the page as it will be read back. `payload_bytes` lie on the medium: the
    page as it is, or the blob of the codec named.
    """

    key: bytes
    page_bytes: int
    checksums: tuple[int, ...]
    payload_bytes: int
    codec: str = ""


@dataclass(frozen=True)
class Put:
    """One page to write: `payload` is uint8 [payload_bytes], contiguous, unchanged until done."""

    record: PageRecord
    payload: np.ndarray


@dataclass(frozen=True)
class Get:
    """A range of one payload to read: `out` is uint8, contiguous, filled from `offset` on."""

    record: PageRecord
    offset: int
    out: np.ndarray


@dataclass(frozen=True)
class Done:
    """How one operation of a batch ended: `reason` is empty, or names the fault.

    `real_bytes`: what a put takes on the medium. Reason "gone" means that a shared medium has
    evicted the page, which is a miss and no fault.
    """

    reason: str = ""
    real_bytes: int = 0


class Medium(Protocol):
    """Keeps payloads by key. One thread, the tier's, calls it, `charge_bytes` apart.

    `shared`: others put and remove too, so that a tier has to ask what is there. `persistent`: what
    was put is there for a later process. `place` names it for people, without any secret, and `way`
    says how its bytes move.
    Nothing below raises for a fault of the medium: it is the `reason` of the operation.
    """

    shared: bool
    persistent: bool
    place: str

    @property
    def way(self) -> str:
        """How bytes move, for the screen: `io_uring, O_DIRECT`, `shared memory`, ..."""

    def charge_bytes(self, record: PageRecord) -> int:
        """Bytes to reserve for a page before it is put; at least what it will really take."""

    def put(self, puts: Sequence[Put]) -> list[Done]:
        """Write pages; each is visible to `get`, `probe` and `scan` only once it is whole."""

    def get(self, gets: Sequence[Get]) -> list[Done]:
        """Read ranges; where `reason` is not empty, `out` holds nothing of use."""

    def remove(self, keys: Sequence[bytes]) -> list[Done]:
        """Delete pages; one that is not there is no fault."""

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """The record of each key that is there now; all None where the medium does not answer."""

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Whole pages with their real bytes, oldest use first, as a new process finds them."""

    def resize(self, capacity_bytes: int) -> bool:
        """Take a new cap, after the tier removed what is above it; False: it must be opened anew.

        A medium whose cap is not ours to set answers True.
        """

    @property
    def real_bytes(self) -> int:
        """Bytes that our pages take on the medium now, counted there."""

    def close(self, keep: bool) -> None:
        """Let the medium go; a persistent one keeps its pages if `keep`."""


SliceReader = Callable[[int], dict[int, str]]  # slice -> the fault's word of each page that failed


@runtime_checkable
class SlicedMedium(Protocol):
    """A medium that knows a better way to slices of many pages than a range each."""

    def slices(
        self, records: Sequence[PageRecord], outs: Sequence[np.ndarray]
    ) -> SliceReader | None:
        """Reads one slice of all pages at a time; None where ranges are as good for these.

        `outs`: uint8 [page_bytes] each, filled slice by slice as it is called.
        """


@runtime_checkable
class HoldingMedium(Protocol):
    """A shared medium that can be asked to keep pages for a request that waits."""

    def prestage(self, keys: Sequence[bytes], hold_s: float) -> list[bool]:
        """Keep pages from eviction for so long; which of them are there. Never raises."""


def encode_key(key: TierKey) -> bytes:
    """A key as bytes; the first byte keeps prefix and private keys apart."""
    if isinstance(key, PrivateKey):
        numbers = struct.pack("<QII", key.epoch, key.group, key.index)
        return b"R" + numbers + key.request_id.encode()
    return b"P" + key


def is_private(key: bytes) -> bool:
    """Whether an encoded key belongs to one request, and so means nothing to anyone else."""
    return key[:1] == b"R"
