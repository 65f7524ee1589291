"""The connection to a Mooncake Store: its client, memory registered with it, a store of ours.

Bytes go through one registered buffer, in which the objects of a batch lie one behind the other.
"""

import socket
import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from workbench.clock import RealClock
from workbench.spatial.hierarchy.aligned import address as memory_address
from workbench.spatial.hierarchy.companion import Companion
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.mooncake_library import (
    MasterAddress,
    load_store,
    parse_address,
    reason_of,
)
from workbench.spatial.hierarchy.mooncake_server import READY

SERVER_MODULE = "workbench.spatial.hierarchy.mooncake_server"
LEAST_BYTES = 16 * 1024 * 1024  # of memory that a client brings to a store
BATCH_BYTES = 16 * 1024 * 1024
START_S = 30.0
AGAIN_S = 5.0  # how often a store that does not answer is set up anew
ANSWER_S = 2.0
Ranges = Sequence[list[tuple[int, int]]]  # (offset, bytes) of each object


class MooncakeLink:
    """A client of the store at `address`, or of one of our own of `capacity_bytes`.

    MediumFault with one sentence if it is not installed, does not start or does not answer.
    """

    def __init__(self, address: str, capacity_bytes: int) -> None:
        self._library = load_store()
        self._clock = RealClock()
        self._client: Any = None
        self._memory = np.empty(0, np.uint8)
        self._capacity_bytes, self.started_at_s = capacity_bytes, self._clock.now_s()
        self.place = address or "a Mooncake Store of this engine's own"
        self.companion = None if address else Companion("kvw-mooncake-")
        try:
            if self.companion is None:
                self.master = parse_address(address)
            else:
                self._start(self.companion)
            self._connect()
        except MediumFault:
            self.close()
            raise

    @property
    def client(self) -> Any:
        """The library's client; MediumFault while there is none."""
        if self._client is None:
            raise MediumFault("unreachable")
        return self._client

    def provide(self, num_bytes: int) -> None:
        """Have registered memory of so many bytes."""
        client = self.client
        if num_bytes <= self._memory.nbytes:
            return
        self._forget_memory()
        self._memory = np.empty(max(num_bytes, BATCH_BYTES), np.uint8)
        if client.register_buffer(memory_address(self._memory), self._memory.nbytes):
            raise MediumFault("no_memory")

    def put(self, names: Sequence[str], parts: Sequence[Sequence[np.ndarray]]) -> list[int]:
        """Create objects of the parts (uint8) given; the library's code of each."""
        at, addresses, sizes = 0, [], []
        self.provide(sum(part.nbytes for each in parts for part in each))
        for each in parts:
            addresses.append(memory_address(self._memory) + at)
            sizes.append(sum(part.nbytes for part in each))
            for part in each:
                self._memory[at : at + part.nbytes] = part
                at += part.nbytes
        codes: list[int] = self.client.batch_put_from(list(names), addresses, sizes)
        return codes

    def get(self, names: Sequence[str], ranges: Ranges) -> list[list[np.ndarray] | int]:
        """Read ranges of objects: views that hold until the next call, or a code, for each."""
        at = 0
        into: list[list[int]] = []
        sizes = [[size for _, size in parts] for parts in ranges]
        for each in sizes:
            into.append(list(accumulate(each[:-1], initial=at)))
            at += sum(each)
        self.provide(at)
        begins = [[begin for begin, _ in parts] for parts in ranges]
        (answers,) = self.client.get_into_ranges(
            [memory_address(self._memory)], [list(names)], [into], [begins], [sizes]
        )
        found: list[list[np.ndarray] | int] = []
        for places, wanted, codes in zip(into, sizes, answers, strict=True):
            bad = [code for code, size in zip(codes, wanted, strict=True) if code != size]
            views = [self._memory[p : p + size] for p, size in zip(places, wanted, strict=True)]
            found.append(bad[0] if bad else views)
        return found

    def size(self, name: str) -> int:
        """Bytes of an object, 0 or less where it is not there; MediumFault without an answer."""
        size: int = self.client.get_size(name)
        if reason_of(size) == "unreachable":
            raise MediumFault("unreachable")
        return size

    def revive(self) -> None:
        """Start ours again if it has ended, and set up the client anew; not all the time."""
        if self._clock.now_s() - self.started_at_s <= AGAIN_S:
            return
        self.started_at_s = self._clock.now_s()
        try:
            self._disconnect()
            if self.companion is not None and not self.companion.alive:
                self._start(self.companion)
            self._connect()
        except MediumFault:
            return  # told by the next operation

    def close(self) -> None:
        """Let the store go; one of ours ends."""
        self._disconnect()
        if self.companion is not None:
            self.companion.close()

    def _start(self, companion: Companion) -> None:
        """Start our store on two free ports, and wait until it says that it is ready."""
        if self._capacity_bytes < LEAST_BYTES:
            raise MediumFault(
                "capacity",
                f"a Mooncake Store of {self._capacity_bytes / 1048576:.1f} MiB: "
                f"give at least {LEAST_BYTES // 1048576} MiB",
            )
        port, admin = _free_ports(2)
        self.master = MasterAddress("127.0.0.1", port, admin)
        self.started_at_s = self._clock.now_s()
        companion.start([
            sys.executable, "-m", SERVER_MODULE, f"--port={port}", f"--admin-port={admin}",
            f"--bytes={self._capacity_bytes}",
        ])  # fmt: skip
        while READY not in companion.log_file.read_text(errors="replace"):
            if not companion.alive or self._clock.now_s() > self.started_at_s + START_S:
                line = companion.last_line() or "it said nothing"
                raise MediumFault("ended", f"the private Mooncake Store did not start: {line}")
            time.sleep(0.02)

    def _connect(self) -> None:
        master = self.master
        try:  # its own attempts take long where nobody listens
            socket.create_connection((master.host, master.port), ANSWER_S).close()
        except OSError:
            raise MediumFault("unreachable", f"{self.place} does not answer") from None
        client = self._library()
        code = client.setup(
            master.local_name, "P2PHANDSHAKE", 0, BATCH_BYTES, "tcp", "",
            f"{master.host}:{master.port}",
        )  # fmt: skip
        if code:
            raise MediumFault("unreachable", f"{self.place} does not let this engine in ({code})")
        self._client = client
        self.provide(BATCH_BYTES)

    def _disconnect(self) -> None:
        if self._client is not None:
            self._forget_memory()
            client, self._client = self._client, None
            client.close()

    def _forget_memory(self) -> None:
        if self._memory.nbytes:
            self._client.unregister_buffer(memory_address(self._memory))
            self._memory = np.empty(0, np.uint8)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
