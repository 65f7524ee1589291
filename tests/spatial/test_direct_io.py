"""Aligned buffers, and batches of I/O by ring or by system call: the same bytes and faults."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.spatial.hierarchy.aligned import ALIGN, Bounce, address, aligned_empty, round_up
from workbench.spatial.hierarchy.direct_io import (
    MAX_IO_BYTES,
    DirectIo,
    DiskWays,
    Piece,
    Ring,
    gather,
)
from workbench.spatial.hierarchy.host_memory import HostMemory

BLOCKS = 256
Opener = Callable[..., DirectIo]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file of 1 MiB whose blocks hold their own numbers, open past the page cache."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([block % 251]) * ALIGN for block in range(BLOCKS)))
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    yield descriptor
    os.close(descriptor)


def pieces_at(blocks: list[int], memory: np.ndarray) -> list[Piece]:
    """One block each, into neighbouring blocks of memory."""
    return [
        Piece(block * ALIGN, memoryview(memory[row * ALIGN : (row + 1) * ALIGN]), row)
        for row, block in enumerate(blocks)
    ]


@pytest.mark.parametrize("num_bytes", [1, 4095, 4096, 368_640])
def test_aligned_memory(num_bytes: int) -> None:
    buffer = aligned_empty(num_bytes)
    assert buffer.nbytes == num_bytes and address(buffer) % ALIGN == 0 and buffer.flags.c_contiguous
    memory = HostMemory(1 << 20)
    taken = memory.take(num_bytes)
    assert address(taken) % ALIGN == 0
    memory.give(taken)
    assert memory.take(num_bytes) is taken


def test_the_bounce_buffer_grows_when_it_has_to() -> None:
    bounce = Bounce(2 * ALIGN)
    bounce.ensure(ALIGN)
    first = bounce.take(ALIGN)
    assert len(first) == ALIGN and bounce.capacity_bytes == 2 * ALIGN
    bounce.reset()
    bounce.ensure(5 * ALIGN - 1)
    assert bounce.capacity_bytes == 5 * ALIGN
    assert address(np.frombuffer(bounce.take(ALIGN), np.uint8)) % ALIGN == 0
    assert round_up(1) == round_up(ALIGN) == ALIGN and round_up(0) == 0


def test_pieces_that_follow_each_other_are_gathered_up_to_a_mebibyte() -> None:
    memory = aligned_empty(BLOCKS * 2 * ALIGN)
    pieces = pieces_at([3, 4, 5, 7, 9, 8], memory)
    ios = [[piece.offset // ALIGN for piece in io] for io in gather(pieces)]
    assert ios == [[3, 4, 5], [7], [9], [8]]
    many = gather(pieces_at(list(range(2 * BLOCKS)), memory))
    assert [sum(len(piece.view) for piece in io) for io in many] == [MAX_IO_BYTES] * 2
    assert list(gather([])) == []


@pytest.mark.parametrize("depth, ring, coalesce", [(32, 1, 1), (3, 1, 0), (1, 1, 0), (1, 0, 1)])
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, BLOCKS - 1), unique=True, max_size=100), st.integers(0, 99))
def test_every_way_moves_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    depth: int, ring: int, coalesce: int, blocks: list[int], seed: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("io") / "file"
    path.write_bytes(bytes(BLOCKS * ALIGN))
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    io = DirectIo(descriptor, DiskWays(bool(ring), True, depth, bool(coalesce)))
    source, target = aligned_empty(100 * ALIGN), aligned_empty(100 * ALIGN)
    source[:] = np.random.default_rng(seed).integers(0, 256, source.nbytes, dtype=np.uint8)
    assert io.run(pieces_at(blocks, source), write=True) == {}
    assert io.run(pieces_at(blocks, target), write=False) == {}
    used = len(blocks) * ALIGN
    assert (target[:used] == source[:used]).all()
    assert io.counts.read_bytes == io.counts.written_bytes == used
    whole = np.frombuffer(path.read_bytes(), np.uint8).reshape(BLOCKS, ALIGN)
    assert not whole[[block for block in range(BLOCKS) if block not in blocks]].any()
    io.close()
    os.close(descriptor)


@pytest.mark.parametrize("use_ring", [True, False])
def test_only_the_pieces_behind_the_end_fail(file: int, use_ring: bool) -> None:
    io = DirectIo(file, DiskWays(use_ring))
    os.ftruncate(file, 5 * ALIGN + 100)
    memory = aligned_empty(8 * ALIGN)
    blocks = [2, 3, 4, 5, 6, 40, 0]
    assert io.run(pieces_at(blocks, memory), write=False) == dict.fromkeys((3, 4, 5), "truncated")
    assert [int(memory[row * ALIGN]) for row in (0, 1, 2, 6)] == [2, 3, 4, 0]
    io.close()


@pytest.mark.parametrize("use_ring", [True, False])
def test_faults_are_words(file: int, use_ring: bool, tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "file", os.O_RDONLY | os.O_DIRECT)
    io = DirectIo(read_only, DiskWays(use_ring))
    memory = aligned_empty(8 * ALIGN)
    memory[:] = 9
    assert io.run(pieces_at([1, 5], memory), write=True) == {0: "io_error", 1: "io_error"}
    assert io.run(pieces_at([1, 5], memory), write=False) == {}
    unaligned = [
        Piece(ALIGN, memoryview(memory[1 : ALIGN + 1]), 4),
        *pieces_at([7], memory[ALIGN:]),
    ]
    before = memory.copy()
    failed = io.run(unaligned, write=False)
    assert failed in ({4: "io_error"}, {})  # some file systems take any address
    assert failed == {} or (memory[1:ALIGN] == before[1:ALIGN]).all()
    io.close()
    full = os.open("/dev/full", os.O_RDWR)
    io = DirectIo(full, DiskWays(use_ring))
    assert io.run(pieces_at([1, 5], memory), write=True) == {0: "disk_full", 1: "disk_full"}
    io.close()
    os.close(full)
    os.close(read_only)


def test_without_a_ring_the_way_says_so(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DirectIo(file, DiskWays(ring=False)).way == "preadv"
    monkeypatch.setitem(sys.modules, "liburing", None)  # as where there is no such package
    io = DirectIo(file)
    assert io.way == "preadv"
    memory = aligned_empty(4 * ALIGN)
    assert io.run(pieces_at([9, 11], memory), write=False) == {}
    assert memory[0] == 9 and memory[ALIGN] == 11
    io.close()


def test_this_machine_has_a_ring_or_its_kernel_forbids_it(file: int) -> None:
    forbidden = Path("/proc/sys/kernel/io_uring_disabled")  # 1: to those without privileges
    said = forbidden.read_text().strip() if forbidden.exists() else ""
    ring = Ring.open(8)
    assert ring is not None or said != "0"
    assert ring is None or said != "2"
    if ring is not None:
        ring.close()


def test_waiting_lets_other_threads_run(file: int) -> None:
    """The ring's calls hold Python's lock, so waiting is done elsewhere."""
    io = DirectIo(file, DiskWays(depth=4, coalesce=False))
    memory = aligned_empty(BLOCKS * ALIGN)
    pieces = pieces_at(list(range(BLOCKS)), memory)
    turns, stop = [0], threading.Event()

    def spin() -> None:
        while not stop.is_set():
            turns[0] += 1

    thread = threading.Thread(target=spin)
    thread.start()
    for _ in range(20):
        assert io.run(pieces, write=False) == {}
    stop.set()
    thread.join()
    assert turns[0] > 1000
    io.close()
