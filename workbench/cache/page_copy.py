"""Copies of pages whose slices are hashed while they are still in the processor's cache.

    page   |s0|s1|s2|s3| ... |s29|      one copy of at most 384 KiB, then the xxh3 of its slices
           copied ->  hashed where they have just been written, from the second-level cache

Slice by slice it takes twice the time: a call for each 12 KiB is dearer than its bytes.
"""

from collections.abc import Sequence

import numpy as np
import xxhash

BLOCK_BYTES = 384 * 1024  # fits the second-level cache of a core together with its source


def copy_hashed(source: np.ndarray, out: np.ndarray, num_slices: int) -> tuple[int, ...]:
    """Copy a page and return the xxh3-64 of its `num_slices` equal slices as they were written.

    `source`, `out`: uint8 [page_bytes], contiguous. ValueError where their sizes differ.
    """
    size, step = _sizes(source, out, num_slices)
    checksums: list[int] = []
    view = memoryview(out)  # type: ignore[arg-type]
    digest = xxhash.xxh3_64_intdigest
    for start in range(0, max(1, size * num_slices), step):
        out[start : start + step] = source[start : start + step]
        end = min(start + step, size * num_slices)
        checksums += [digest(view[at : at + size]) for at in range(start, end, size)]
    out[size * num_slices :] = source[size * num_slices :]
    return tuple(checksums)


def copy_verified(source: np.ndarray, out: np.ndarray, checksums: Sequence[int]) -> bool:
    """Copy a page; whether its slices have these xxh3-64. If not, nobody may use `out`."""
    return copy_hashed(source, out, len(checksums)) == tuple(checksums)


def slice_checksums(page: np.ndarray, num_slices: int) -> tuple[int, ...]:
    """xxh3-64 of `num_slices` equal parts of a page (uint8 [page_bytes])."""
    size = page.nbytes // num_slices
    view = memoryview(page)  # type: ignore[arg-type]
    return tuple(
        xxhash.xxh3_64_intdigest(view[start : start + size])
        for start in range(0, size * num_slices, size)
    )


def _sizes(source: np.ndarray, out: np.ndarray, num_slices: int) -> tuple[int, int]:
    """Bytes of a slice, and of the whole slices that are copied at once."""
    if source.nbytes != out.nbytes:
        raise ValueError(f"out has {out.nbytes} bytes: the page has {source.nbytes}")
    if not 1 <= num_slices <= source.nbytes:
        raise ValueError(f"num_slices {num_slices}: 1..{source.nbytes}, the bytes of the page")
    size = source.nbytes // num_slices
    return size, max(1, BLOCK_BYTES // size) * size
