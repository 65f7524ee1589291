"""Lossless: bytes of equal significance together, then zstd.

bf16 numbers of similar size share sign and exponent, which lie in their high bytes: apart from the
mantissas, which look random, those compress well. One plane leaves bytes as they are (int8, int4).

    page    a0 a1 b0 b1 c0 c1 ...          two planes   a0 b0 c0 ... | a1 b1 c1 ...

The shuffle stays on the CPU where pages come from a GPU too, although `kvkernels.triton_planes` has
it: it is a twentieth of the time of an encode. Pages that lay in planes from the GPU on would have
no layers that can be read and verified on their own; in planes by layer zstd finds less to save.
"""

import numpy as np
import zstandard

from workbench.cache.codec import CodecFault, RowPart

PLANES = (1, 2, 4)
SAMPLE_BYTES = 1 << 15
LEVEL = 3  # higher levels cost several times the time and save less than 1 %


class BytePlanes:
    """Byte-plane shuffle and zstd; the number of planes is tried on the head of each page."""

    name = "planes+zstd"
    number = 1
    numerics = ""
    shared_bytes = 0
    alone = True

    def __init__(self) -> None:
        self._pack = zstandard.ZstdCompressor(level=LEVEL)
        self._unpack = zstandard.ZstdDecompressor()

    def encode(
        self, page: np.ndarray, parts: tuple[RowPart, ...] | None = None
    ) -> tuple[bytes, int]:
        """uint8 [page_bytes] to (zstd frame, planes)."""
        sample = page[:SAMPLE_BYTES]
        tried = [planes for planes in PLANES if page.nbytes % planes == 0]
        tried = [planes for planes in tried if sample.nbytes % planes == 0]
        best = min(tried, key=lambda planes: len(self._pack.compress(_split(sample, planes))))
        return self._pack.compress(_split(page, best)), best

    def decode(self, payload: memoryview, planes: int, page: np.ndarray) -> None:
        """Fill uint8 [page_bytes] from a zstd frame; CodecFault if it is not one of this page."""
        if planes not in PLANES or page.nbytes % planes:
            raise CodecFault("corrupt")
        try:
            raw = self._unpack.decompress(payload, max_output_size=page.nbytes)
        except zstandard.ZstdError:
            raise CodecFault("corrupt") from None
        if len(raw) != page.nbytes:
            raise CodecFault("corrupt")
        page.reshape(-1, planes)[:] = np.frombuffer(raw, np.uint8).reshape(planes, -1).T


def _split(page: np.ndarray, planes: int) -> bytes:
    return page.tobytes() if planes == 1 else page.reshape(-1, planes).T.tobytes()
