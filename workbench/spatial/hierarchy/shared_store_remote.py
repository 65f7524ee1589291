"""The memory of a shared store by one-sided transfers of NIXL's UCX plug-in, from either side.

    store    registers its arena; what others need for it is in its Welcome
    client   READs and WRITEs ranges of it, the store's process takes no part

UCX moves by shared memory and cross-memory copies: the kernel lets this user alone, nobody listens
at a port, and a store that stands still holds nobody up. `UCX_TLS` in the environment of both sides
chooses otherwise. Over TCP it works, but UCX asks nobody who he is, and it ends a store's process
that stood still while a client gave up ("Endpoint timeout", UCX of nixl-cu12 1.5.1).

What a client gives up on its way (never with shared memory) may still land in the store. That harms
nobody: the client does not say that it has stopped, so its room is another's only after the store's
quarantine, before whose end the store has applied what was sent; and whoever reads a page verifies
it.
"""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from workbench.spatial.hierarchy.aligned import address as address_of
from workbench.spatial.hierarchy.aligned import aligned_empty
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.nixl_agent import NixlAgent, load_nixl
from workbench.spatial.hierarchy.shared_store_arena import (
    PIECE_BYTES,
    Arena,
    ArenaAccess,
    check_head,
)
from workbench.spatial.hierarchy.shared_store_protocol import ARENA_HEAD, Welcome

GREET_S = 2.0


# Shared memory has no handler of failures: the kernel refuses to copy from a process that is gone.
UCX_OPTIONS = {"engine_config": "TLS=shm", "ucx_error_handling_mode": "none"}


def attach_by(transport: str, clock_s: Callable[[], float]) -> Callable[[Welcome], ArenaAccess]:
    """How a client of that transport reaches a store's memory; MediumFault where it cannot."""
    if transport != "nixl":
        return Arena.attach
    load_nixl()  # what is missing is told before a store is started
    return partial(RemoteArena.attach, clock_s=clock_s)


class OfferedArena:
    """The store's side; MediumFault with one sentence where NIXL cannot be had."""

    def __init__(self, arena: Arena) -> None:
        self._agent = NixlAgent("UCX", UCX_OPTIONS)
        self._agent.hold(arena.memory)
        self.metadata = self._agent.metadata()
        self.base = address_of(arena.memory)

    def progress(self) -> None:
        """Apply what clients have sent by now."""
        self._agent.progress()


class RemoteArena:
    """The client's side, an `ArenaAccess`; threads take turns.

    Bytes go by a buffer of the agent's, so that what comes after its time, or with an error, never
    touches memory that is another's by then.
    """

    way = "NIXL UCX"

    def __init__(self, welcome: Welcome) -> None:
        self.num_bytes = welcome.arena_bytes
        self.lost = False
        self._lock = threading.Lock()
        self._base = welcome.nixl_base
        self._agent = NixlAgent("UCX", UCX_OPTIONS)
        self._buffer = aligned_empty(PIECE_BYTES)
        self._agent.hold(self._buffer)
        self._store = self._agent.join(welcome.nixl)

    @staticmethod
    def attach(welcome: Welcome, clock_s: Callable[[], float]) -> "RemoteArena":
        """Reach what a store offers; MediumFault unless it offers it to NIXL, and is that store."""
        if not welcome.nixl:
            raise MediumFault(
                "no_transport",
                "the shared store was started without NIXL: start it with `workbench "
                "store serve --transport nixl`, or choose the direct transport",
            )
        arena = RemoteArena(welcome)
        head = np.zeros(ARENA_HEAD.size, np.uint8)
        until_s = clock_s() + GREET_S
        if not arena.load(0, head, lambda: clock_s() <= until_s):
            raise MediumFault(
                "no_transport",
                "NIXL does not reach the memory of the shared store: run it as the same user, in "
                "the same container",
            )
        check_head(head, welcome)
        return arena

    def load(self, at: int, out: np.ndarray, in_time: Callable[[], bool]) -> bool:
        """READ bytes from `at` on, at most `PIECE_BYTES`; False if they did not come in time."""
        with self._lock:
            if not self._move(False, at, out.nbytes, in_time):
                return False
            out[:] = self._buffer[: out.nbytes]
        return True

    def save(self, at: int, data: np.ndarray, in_time: Callable[[], bool]) -> bool:
        """WRITE bytes from `at` on, at most `PIECE_BYTES`; False if they may not be there."""
        with self._lock:
            if not self.lost:  # else what was given up may still be sent from the buffer
                self._buffer[: data.nbytes] = data
            return self._move(True, at, data.nbytes, in_time)

    def _move(self, write: bool, at: int, num_bytes: int, in_time: Callable[[], bool]) -> bool:
        if self.lost or not in_time():
            return False
        here, there = (address_of(self._buffer), num_bytes), (self._base + at, num_bytes, 0)
        transfer = self._agent.begin(write, [here], "DRAM", [there], self._store)
        moved = transfer.wait(in_time)
        self.lost = not moved
        return moved
