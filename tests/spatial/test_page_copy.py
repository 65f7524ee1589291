"""Copies that hash on the way, and host buffers cut from slabs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spatial.media import CANARY, page_of
from workbench.cache.page_copy import BLOCK_BYTES, copy_hashed, slice_checksums
from workbench.spatial.hierarchy.aligned import ALIGN, address
from workbench.spatial.hierarchy.host_memory import SLAB_BYTES, HostMemory


@given(num_bytes=st.integers(1, 5000) | st.just(3 * BLOCK_BYTES + 7), data=st.data())
def test_a_copy_has_the_checksums_of_its_slices(num_bytes: int, data: st.DataObject) -> None:
    num_slices = data.draw(st.integers(1, min(40, num_bytes)))
    page = page_of(num_bytes, num_bytes)
    room = np.full(num_bytes + 32, CANARY, np.uint8)
    assert copy_hashed(page, room[16:-16], num_slices) == slice_checksums(page, num_slices)
    assert (room[16:-16] == page).all()
    assert (room[:16] == CANARY).all() and (room[-16:] == CANARY).all()


def test_what_cannot_be_copied() -> None:
    page = page_of(1, 100)
    with pytest.raises(ValueError, match="out has 99 bytes: the page has 100"):
        copy_hashed(page, page[:99].copy(), 1)
    for num_slices in (0, 101):
        with pytest.raises(ValueError, match=f"num_slices {num_slices}: 1..100"):
            copy_hashed(page, page.copy(), num_slices)


@given(st.lists(st.tuples(st.sampled_from([4096, 10_000, 368_640, 3 << 20]), st.booleans())))
def test_host_memory_counts_what_it_holds(steps: list[tuple[int, bool]]) -> None:
    memory = HostMemory(12 << 20)
    held: list[tuple[np.ndarray, int]] = []
    for number, (num_bytes, back) in enumerate(steps):
        if back and held:
            buffer, seed = held.pop(number % len(held))
            assert buffer[0] == buffer[-1] == seed, "no two buffers overlap"
            memory.give(buffer)
        elif memory.live_bytes + num_bytes <= memory.limit_bytes:
            buffer = memory.take(num_bytes)
            assert buffer.nbytes == num_bytes and address(buffer) % ALIGN == 0
            buffer[:] = number % 251
            held.append((buffer, number % 251))
        assert memory.live_bytes == sum(buffer.nbytes for buffer, _ in held)
        assert memory.live_bytes + memory.spare_bytes <= memory.limit_bytes
    assert all(buffer[0] == buffer[-1] == seed for buffer, seed in held)
    memory.set_limit(0)
    assert memory.spare_bytes == 0


def test_freed_parts_of_a_slab_go_back_to_the_system() -> None:
    memory = HostMemory(4 * SLAB_BYTES)
    buffers = [memory.take(1 << 20) for _ in range(16)]
    for buffer in buffers:
        buffer[:] = 1
    kept = buffers.pop()
    for buffer in buffers:
        memory.give(buffer)
    assert memory.spare_bytes == 15 << 20
    memory.set_limit(1 << 20)
    assert memory.spare_bytes == 0 and not any(buffer.any() for buffer in buffers)
    assert kept.all()
