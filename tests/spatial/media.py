"""What every medium is tested with: pages, records, and destinations with a canary."""

from collections.abc import Sequence

import numpy as np

from workbench.cache.keys import PrivateKey
from workbench.cache.page_copy import slice_checksums
from workbench.spatial.hierarchy.medium import Done, Get, Medium, PageRecord, Put, encode_key

CANARY = 0xA5
PAGE = 65_536
SLICES = 8


def key_of(number: int) -> bytes:
    return encode_key(number.to_bytes(32, "little"))


def private_key(request: str = "request-1", index: int = 0) -> bytes:
    return encode_key(PrivateKey(request, 0, 0, index))


def page_of(seed: int, num_bytes: int = PAGE) -> np.ndarray:
    """The one right content of a page, without a byte that is the canary."""
    page = np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)
    page[page == CANARY] = 0
    return page


def put_of(key: bytes, page: np.ndarray, num_slices: int = SLICES, codec: str = "") -> Put:
    record = PageRecord(key, page.nbytes, slice_checksums(page, num_slices), page.nbytes, codec)
    return Put(record, page)


def numbered(number: int, num_bytes: int = PAGE) -> Put:
    """The page of a number, under the key of that number."""
    return put_of(key_of(number), page_of(number, num_bytes))


def read(medium: Medium, put: Put, offset: int = 0, num_bytes: int = -1) -> str:
    """Read a range; the reason of a miss, or "" once its bytes are seen to be the right ones."""
    size = put.payload.nbytes - offset if num_bytes < 0 else num_bytes
    out = np.full(size + 16, CANARY, dtype=np.uint8)  # 16 bytes behind, which nobody may touch
    (done,) = medium.get([Get(put.record, offset, out[:size])])
    assert (out[size:] == CANARY).all(), "bytes behind the destination were written"
    if not done.reason:
        assert (out[:size] == put.payload[offset : offset + size]).all(), "wrong bytes"
    return done.reason


def reasons(done: Sequence[Done]) -> list[str]:
    return [each.reason for each in done]
