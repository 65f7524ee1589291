"""The memory of a shared store: anonymous, so that the kernel frees it even if the store is killed.

    block 0              magic, number of the arena: what a client sees that it mapped
    blocks 1 ..          pages, each in one run of blocks or several

The descriptor is sealed against shrinking and growing: a mapping of it never faults.
"""

import fcntl
import mmap
import os

import numpy as np

from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.shared_store_protocol import (
    ARENA_HEAD,
    ARENA_MAGIC,
    BLOCK,
    Runs,
    Welcome,
)

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Arena:
    """A mapping; `memory` is uint8 [num_bytes], its blocks of 4096 bytes counted from 0."""

    def __init__(self, fd: int, num_bytes: int) -> None:
        self.fd = fd
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
        head = arena.memory[: ARENA_HEAD.size].tobytes()
        if head != ARENA_HEAD.pack(ARENA_MAGIC, welcome.arena):
            raise MediumFault("foreign", "the memory offered is not that of a shared store")
        return arena

    def pieces(self, runs: Runs, offset: int, num_bytes: int) -> list[np.ndarray]:
        """Views of the bytes from `offset` on of a page in `runs` (ValueError outside of them)."""
        found: list[np.ndarray] = []
        for start, count in runs:
            size = count * BLOCK
            if offset < size and num_bytes > 0:
                length = min(num_bytes, size - offset)
                at = start * BLOCK + offset
                if start < 1 or at + length > self.memory.nbytes:
                    raise ValueError("a page's runs lie outside the arena")
                found.append(self.memory[at : at + length])
                num_bytes -= length
                offset = 0
            else:
                offset = max(0, offset - size)
        if num_bytes > 0:
            raise ValueError("a page's runs are shorter than the page")
        return found

    def read(self, runs: Runs, num_bytes: int) -> bytes:
        """A copy of a page's first bytes."""
        return b"".join(piece.tobytes() for piece in self.pieces(runs, 0, num_bytes))
