"""The memory of a shared store: anonymous, so that the kernel frees it even if the store is killed.

    block 0              magic, number of the arena: what a client sees that it mapped
    blocks 1 ..          pages, each in one run of blocks or several

The descriptor is sealed against shrinking and growing: a mapping of it never faults.
"""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.shared_store_protocol import (
    ARENA_HEAD,
    ARENA_MAGIC,
    BLOCK,
    Runs,
    Welcome,
)

PIECE_BYTES = 1024 * 1024  # of one copy: the clock is looked at before each
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaAccess(Protocol):
    """How a client's bytes get in and out of a store's memory of `num_bytes`.

    `lost`: nothing moves any more, and what was to be written last may still land there.
    """

    way: str
    num_bytes: int
    lost: bool

    def load(self, at: int, out: np.ndarray, in_time: Callable[[], bool]) -> bool:
        """Read at most `PIECE_BYTES`; False, and `out` untouched, if they did not come in time."""
        ...

    def save(self, at: int, data: np.ndarray, in_time: Callable[[], bool]) -> bool:
        """Write at most `PIECE_BYTES`; False if they are not there in time."""
        ...


class Arena:
    """A mapping; `memory` is uint8 [num_bytes], its blocks of 4096 bytes counted from 0."""

    way = "shared memory"
    lost = False

    def __init__(self, fd: int, num_bytes: int) -> None:
        self.fd = fd
        self.num_bytes = num_bytes
        self.memory = np.frombuffer(mmap.mmap(fd, num_bytes), np.uint8)

    @staticmethod
    def create(num_blocks: int, number: int) -> "Arena":
        """Memory for `num_blocks` blocks of pages, readable by this user alone (OSError)."""
        num_bytes = (num_blocks + 1) * BLOCK
        fd = os.memfd_create("kv-workbench-store", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, num_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            arena = Arena(fd, num_bytes)
        except OSError:
            os.close(fd)
            raise
        head = ARENA_HEAD.pack(ARENA_MAGIC, number)
        arena.memory[: len(head)] = np.frombuffer(head, np.uint8)
        return arena

    @staticmethod
    def attach(welcome: Welcome) -> "Arena":
        """Map what a store offers; MediumFault unless it is just that, sealed."""
        path = f"/proc/{welcome.pid}/fd/{welcome.fd}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
                if not sealed or os.fstat(fd).st_size != welcome.arena_bytes:
                    raise MediumFault("foreign", "the memory offered is not that of a shared store")
                arena = Arena(fd, welcome.arena_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            raise MediumFault(
                "unreachable",
                f"the memory of the shared store cannot be mapped ({error.strerror}): "
                "run it as the same user, in the same container",
            ) from None
        check_head(arena.memory[: ARENA_HEAD.size], welcome)
        return arena

    def load(self, at: int, out: np.ndarray, in_time: Callable[[], bool]) -> bool:
        """Copy bytes from `at` on into `out`."""
        if not in_time():
            return False
        out[:] = self.memory[at : at + out.nbytes]
        return True

    def save(self, at: int, data: np.ndarray, in_time: Callable[[], bool]) -> bool:
        """Copy `data` to the bytes from `at` on."""
        if not in_time():
            return False
        self.memory[at : at + data.nbytes] = data
        return True

    def read(self, runs: Runs, num_bytes: int) -> bytes:
        """A copy of a page's first bytes."""
        spans = spans_of(runs, 0, num_bytes, self.num_bytes)
        return b"".join(self.memory[at : at + size].tobytes() for at, size in spans)


def check_head(head: np.ndarray, welcome: Welcome) -> None:
    """MediumFault unless an arena begins as the one that a store has told of."""
    if head.tobytes() != ARENA_HEAD.pack(ARENA_MAGIC, welcome.arena):
        raise MediumFault("foreign", "the memory offered is not that of a shared store")


def spans_of(
    runs: Runs, offset: int, num_bytes: int, arena_bytes: int
) -> Iterator[tuple[int, int]]:
    """Where bytes of a page in `runs` lie, from `offset` on: (first byte, at most `PIECE_BYTES`).

    ValueError where that is outside of the runs or the arena.
    """
    for start, count in runs:
        size = count * BLOCK
        if offset >= size:
            offset -= size
            continue
        if start < 1 or start * BLOCK + size > arena_bytes:
            raise ValueError("a page's runs lie outside the arena")
        while offset < size and num_bytes > 0:
            length = min(num_bytes, size - offset, PIECE_BYTES)
            yield start * BLOCK + offset, length
            offset, num_bytes = offset + length, num_bytes - length
        offset = 0
    if num_bytes > 0:
        raise ValueError("a page's runs are shorter than the page")
