"""Slices of many pages that lie side by side on the file, each read by one call.

    layer first   | h a0 h b0 h c0 ... | a1 b1 c1 ... |     slice 1 of a, b and c is one preadv

A call moves megabytes while the interpreter is free for whoever computes; ring entries made one by
one would hold it. Where pages lie block first no two slices are neighbours, and nothing is gained.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from workbench.spatial.hierarchy.aligned import ALIGN, address, aligned_empty
from workbench.spatial.hierarchy.disk_record import Placed
from workbench.spatial.hierarchy.extents import Run

MOST_PAGES = 512  # of a call: IOV_MAX is 1024, and a header may lie between two
LEAST_JOINED = 4  # pages a call on average, or ranges are as good


@dataclass(slots=True)
class _Call:
    """Where in the file, which pages, and how many bytes lie between their slices."""

    offset: int
    pages: list[int]
    skip: int = 0

    def num_bytes(self, slice_bytes: int) -> int:
        """Bytes from the first slice to the end of the last one."""
        return len(self.pages) * (slice_bytes + self.skip) - self.skip


class DiskSlices:
    """Calls that read one slice of every page; ValueError where that is of no use here.

    `placed` and `outs` (uint8 [page_bytes]) belong together; slices are whole blocks of 4096 bytes.
    """

    def __init__(self, file: int, placed: Sequence[Placed], outs: Sequence[np.ndarray]) -> None:
        record = placed[0].record
        count = len(record.checksums)
        self.slice_bytes = record.payload_bytes // count
        alike = all(
            len(page.record.checksums) == count
            and page.record.payload_bytes == record.payload_bytes
            and address(out) % ALIGN == 0
            for page, out in zip(placed, outs, strict=True)
        )
        if self.slice_bytes % ALIGN or not alike:
            raise ValueError("slices are no whole blocks")
        self._file = file
        self._skipped = memoryview(aligned_empty(ALIGN))  # type: ignore[arg-type]
        self._views = [memoryview(out) for out in outs]  # type: ignore[arg-type]
        blocks = self.slice_bytes // ALIGN
        self._starts = [_starts(page.runs, blocks, count) for page in placed]
        if len(self._calls(count - 1)) * LEAST_JOINED > len(placed):
            raise ValueError("slices are no neighbours")

    def read(self, number: int) -> tuple[int, list[int]]:
        """Read one slice of every page: how many calls that took, and which pages did not come."""
        size = self.slice_bytes
        begin, end = number * size, (number + 1) * size
        failed: list[int] = []
        calls = self._calls(number)  # not before: the first slice is waited for
        for call in calls:
            views = [self._views[page][begin:end] for page in call.pages]
            if call.skip:
                skipped = self._skipped[: call.skip]
                views = [view for each in views for view in (each, skipped)][:-1]
            try:
                moved = os.preadv(self._file, views, call.offset)
            except OSError:  # whoever reads them one by one meets it again, and tells
                moved = 0
            if moved != call.num_bytes(size):
                failed += call.pages
        return len(calls), failed

    def _calls(self, number: int) -> list[_Call]:
        """The calls for one slice."""
        return _joined([page[number] for page in self._starts], self.slice_bytes)


def _starts(runs: Sequence[Run], blocks: int, count: int) -> list[int]:
    """Byte in the file of each slice of so many blocks; ValueError where a run ends inside one."""
    lengths = [length for _, length in runs]
    if lengths == [blocks + 1] + [blocks] * (count - 1):  # layer first, as long as it is not full
        return [(start + (not at)) * ALIGN for at, (start, _) in enumerate(runs)]
    ends = list(accumulate(length for _, length in runs))
    found, at = [], 0
    for number in range(count):
        first = 1 + number * blocks  # behind the header
        while ends[at] <= first:
            at += 1
        if first + blocks > ends[at]:
            raise ValueError("a slice lies in two places")
        start, length = runs[at]
        found.append((start + first - (ends[at] - length)) * ALIGN)
    return found


def _joined(starts: list[int], slice_bytes: int) -> list[_Call]:
    """Calls for pages whose slices begin there; neighbours go together, and so do those with a
    header between them."""
    calls: list[_Call] = []
    end = -1
    for page in sorted(range(len(starts)), key=starts.__getitem__):
        skip, last = starts[page] - end, calls[-1] if calls else None
        full = last is None or len(last.pages) == MOST_PAGES
        if (
            last is None
            or full
            or not (skip == last.skip or (len(last.pages) == 1 and skip in (0, ALIGN)))
        ):
            calls.append(_Call(starts[page], [page]))
        else:
            last.pages.append(page)
            last.skip = skip
        end = starts[page] + slice_bytes
    return calls
