"""Slices of many pages by one call: right bytes at the right place, or a fault by its word."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spatial.media import CANARY, page_of, put_of, reasons
from workbench.spatial.hierarchy.aligned import ALIGN, aligned_empty
from workbench.spatial.hierarchy.direct_io import DiskWays
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.disk_slices import _joined
from workbench.spatial.hierarchy.medium import Put, SlicedMedium

SLICES, SLICE = 8, 8192
MIB = 1 << 20


@pytest.fixture
def disk() -> Iterator[DiskFile]:
    opened = DiskFile("", 4 * MIB, ways=DiskWays(layout="layer_first"))
    yield opened
    opened.close(keep=False)


def puts_of(count: int, slice_bytes: int = SLICE) -> list[Put]:
    puts = []
    for number in range(count):
        payload = aligned_empty(SLICES * slice_bytes)
        payload[:] = page_of(number, SLICES * slice_bytes)
        puts.append(put_of(b"P" + bytes([number]) * 32, payload, SLICES))
    return puts


def places(puts: list[Put], shift: int = 0) -> list[np.ndarray]:
    """Destinations full of canaries, `shift` bytes off a multiple of 4096."""
    found = []
    for put in puts:
        room = aligned_empty(put.payload.nbytes + ALIGN)
        room[:] = CANARY
        found.append(room[shift : shift + put.payload.nbytes])
    return found


def test_each_slice_comes_by_one_call_and_touches_nothing_else(disk: DiskFile) -> None:
    assert isinstance(disk, SlicedMedium)
    puts = puts_of(6)
    assert reasons(disk.put(puts)) == [""] * 6
    outs = places(puts)
    reader = disk.slices([put.record for put in puts], outs)
    assert reader is not None
    for number in range(SLICES):
        before = disk.counts.num_reads
        assert reader(number) == {}
        assert disk.counts.num_reads == before + 1  # headers between the first ones are skipped
        end = (number + 1) * SLICE
        for put, out in zip(puts, outs, strict=True):
            assert (out[:end] == put.payload[:end]).all() and (out[end:] == CANARY).all()


def test_the_order_asked_for_is_kept(disk: DiskFile) -> None:
    puts = puts_of(6)
    disk.put(puts)
    asked = [puts[at] for at in (4, 0, 5, 2, 1, 3)]
    outs = places(asked)
    reader = disk.slices([put.record for put in asked], outs)
    assert reader is not None and all(reader(number) == {} for number in range(SLICES))
    for put, out in zip(asked, outs, strict=True):
        assert (out == put.payload).all()


def test_a_cut_file_is_told_page_by_page(disk: DiskFile) -> None:
    puts = puts_of(6)
    disk.put(puts)
    outs = places(puts)
    reader = disk.slices([put.record for put in puts], outs)
    assert reader is not None
    last = max(start for put in puts for start, _ in disk.runs_of(put.record.key))
    os.ftruncate(disk._file, last * ALIGN)
    failed = reader(SLICES - 1)
    assert 1 <= len(failed) < 6 and set(failed.values()) == {"truncated"}
    for at, put in enumerate(puts):
        if at not in failed:
            assert (outs[at][-SLICE:] == put.payload[-SLICE:]).all()


@pytest.mark.parametrize("why", ["block_first", "gone", "another", "unaligned", "odd slices"])
def test_where_ranges_are_as_good_it_says_so(why: str, disk: DiskFile) -> None:
    if why == "block_first":
        disk.arrange("block_first", True)
    puts = puts_of(6, 8000 if why == "odd slices" else SLICE)
    assert reasons(disk.put(puts)) == [""] * 6
    records = [put.record for put in puts]
    if why == "gone":
        disk.remove([records[2].key])
    elif why == "another":
        disk.put([put_of(records[2].key, page_of(99, SLICES * SLICE), SLICES)])
    assert disk.slices(records, places(puts, 64 if why == "unaligned" else 0)) is None


@given(st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_calls_cover_each_slice_once(blocks: list[int]) -> None:
    starts = [block * ALIGN for block in blocks]
    seen: list[int] = []
    for call in _joined(starts, ALIGN):
        at = call.offset
        for page in call.pages:
            assert starts[page] == at
            at += ALIGN + call.skip
        assert call.skip in (0, ALIGN)
        assert call.num_bytes(ALIGN) == at - call.skip - call.offset
        seen += call.pages
    assert sorted(seen) == list(range(len(starts)))
