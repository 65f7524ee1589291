"""The process of a shared store (G3.5): answers calls, and keeps pages in memory for all engines.

    python -m workbench.spatial.hierarchy.shared_store_server --address ipc:///path --mib 512

`--watch-stdin` ends it when its standard input does, so that a private store dies with its engine.
"""

import argparse
import fcntl
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from workbench.clock import RealClock
from workbench.settings.tiers import SHARED_TRANSPORTS
from workbench.spatial.hierarchy import shared_store_protocol as protocol
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.record_header import PROBE_BYTES, needed_bytes
from workbench.spatial.hierarchy.shared_store_arena import Arena
from workbench.spatial.hierarchy.shared_store_index import StoreIndex, StoreLimits
from workbench.spatial.hierarchy.shared_store_protocol import BLOCK, Answer, Call, Runs
from workbench.spatial.hierarchy.shared_store_remote import OfferedArena

SWEEP_MS = 100
MIB = 1024 * 1024
USER_ERROR = 2


class StoreServer:
    """One store behind one socket; MediumFault with one sentence if it cannot be opened.

    `private`: one engine alone uses it, and may seal it. `transport` `nixl`: the memory is offered
    to UCX too.
    """

    def __init__(
        self,
        address: str,
        capacity_mib: float,
        limits: StoreLimits,
        private: bool = False,
        transport: str = "direct",
    ) -> None:
        num_blocks = int(capacity_mib * MIB) // BLOCK
        if num_blocks < 1:
            raise MediumFault("capacity", f"--mib {capacity_mib}: give at least 0.004")
        self._clock = RealClock()
        self._number = secrets.randbits(63) | 1
        self._limits, self._private = limits, private
        self._lock_fd = _claim(address)
        try:
            self._arena = Arena.create(num_blocks, self._number)
        except (OSError, OverflowError, ValueError) as error:
            raise MediumFault(
                "capacity", f"--mib {capacity_mib}: no such memory ({error})"
            ) from None
        self._offered = OfferedArena(self._arena) if transport == "nixl" else None
        self._index = StoreIndex(num_blocks, limits, self._read_header)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 1000)  # who does not read its answers loses them
        os.umask(0o077)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise MediumFault(
                "address", f"shared store {address} cannot be opened ({error.strerror})"
            ) from None
        self._decoder = msgspec.msgpack.Decoder(Call)
        self._encode = msgspec.msgpack.Encoder().encode
        self._stopping = False

    def stop(self) -> None:
        """End `serve` soon."""
        self._stopping = True

    def serve(self, watch_fd: int | None = None) -> None:
        """Answer until stopped, or until `watch_fd` ends."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        if watch_fd is not None:
            poller.register(watch_fd, zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll(SWEEP_MS))
            if watch_fd is not None and watch_fd in ready and not os.read(watch_fd, 4096):
                break
            while self._socket.poll(0):
                self._take(self._socket.recv_multipart())
            if self._offered is not None:
                # Before a quarantine may end: what was sent by then lands in nobody else's room.
                self._offered.progress()
            self._index.sweep(self._clock.now_s())
        self._context.destroy(linger=0)

    def _take(self, frames: list[bytes]) -> None:
        sender, frames = frames[0], frames[1:]
        version = protocol.version_of(frames[0]) if frames else None
        if version is None:
            return  # no client of any version: nothing it could understand
        if version != protocol.VERSION:
            self._socket.send_multipart([sender, protocol.prefix(), b""])
            return
        try:
            call = self._decoder.decode(frames[1] if len(frames) == 2 else b"")
            answer = self._answer(call)
        except (msgspec.DecodeError, ValueError):
            answer = Answer(-1, error="malformed")
        if answer is not None:
            self._socket.send_multipart([sender, protocol.prefix(), self._encode(answer)])

    def _answer(self, call: Call) -> Answer | None:
        if len(call.owner) != 16:
            raise ValueError("an owner is 16 bytes")
        if isinstance(call.body, protocol.Hello):
            return Answer(call.call_id, msgspec.Raw(self._encode(self._welcome())))
        if call.arena != self._number:
            return Answer(call.call_id, error="stale")
        handle: Callable[[Any, bytes, float], Any] = getattr(
            self, "_on_" + type(call.body).__name__.lower()
        )
        for size in (len(getattr(call.body, name)) for name in ("names", "tickets")
                     if hasattr(call.body, name)):  # fmt: skip
            if size > protocol.MAX_BATCH:
                raise ValueError("a batch is too long")
        value = handle(call.body, call.owner, self._clock.now_s())
        if isinstance(call.body, protocol.Release):
            return None
        return Answer(call.call_id, msgspec.Raw(self._encode(value)))

    def _welcome(self) -> protocol.Welcome:
        return protocol.Welcome(
            pid=os.getpid(),
            fd=self._arena.fd,
            arena=self._number,
            arena_bytes=self._arena.memory.nbytes,
            lease_ms=int(self._limits.lease_s * 1000),
            put_timeout_ms=int(self._limits.put_timeout_s * 1000),
            nixl=self._offered.metadata if self._offered is not None else b"",
            nixl_base=self._offered.base if self._offered is not None else 0,
        )

    def _on_allocate(self, body: protocol.Allocate, owner: bytes, now_s: float) -> Any:
        pages = zip(body.names, body.num_bytes, body.private, strict=True)
        return [
            self._index.allocate(name, num_bytes, private, owner, now_s)
            for name, num_bytes, private in pages
        ]

    def _on_commit(self, body: protocol.Commit, owner: bytes, now_s: float) -> Any:
        pairs = zip(body.tickets, body.kept, strict=True)
        return [self._index.commit(ticket, kept, owner, now_s) for ticket, kept in pairs]

    def _on_acquire(self, body: protocol.Acquire, owner: bytes, now_s: float) -> Any:
        lease_s = max(0, body.lease_ms) / 1000
        return [self._index.acquire(name, lease_s, now_s) for name in body.names]

    def _on_release(self, body: protocol.Release, owner: bytes, now_s: float) -> None:
        for ticket in body.tickets:
            self._index.release(ticket)

    def _on_probe(self, body: protocol.Probe, owner: bytes, now_s: float) -> Any:
        return [self._index.probe(name, now_s) for name in body.names]

    def _on_remove(self, body: protocol.Remove, owner: bytes, now_s: float) -> Any:
        return sum(self._index.remove(name) for name in body.names)

    def _on_prestage(self, body: protocol.Prestage, owner: bytes, now_s: float) -> Any:
        hold_s = min(max(0, body.hold_ms), protocol.MAX_HOLD_MS) / 1000
        return [self._index.prestage(name, hold_s, now_s) for name in body.names]

    def _on_scan(self, body: protocol.Scan, owner: bytes, now_s: float) -> Any:
        return self._index.scan()

    def _on_getusage(self, body: protocol.GetUsage, owner: bytes, now_s: float) -> Any:
        return self._index.usage(owner, now_s)

    def _on_seal(self, body: protocol.Seal, owner: bytes, now_s: float) -> None:
        if not self._private:
            raise ValueError("a store of several engines is not sealed by one of them")
        self._index.sealed = body.sealed

    def _on_bye(self, body: protocol.Bye, owner: bytes, now_s: float) -> None:
        self._index.forget_owner(owner)
        self._index.sweep(now_s)

    def _read_header(self, runs: Runs) -> bytes:
        size = sum(count for _, count in runs) * BLOCK
        first = self._arena.read(runs, min(PROBE_BYTES, size))
        return self._arena.read(runs, min(needed_bytes(first), size))


def _claim(address: str) -> int | None:
    """Make the socket's folder and lock the address, until the process ends in whatever way."""
    protocol.check_address(address)
    if not address.startswith("ipc://"):
        return None
    path = address.removeprefix("ipc://")
    protocol.private_folder(os.path.dirname(path))
    try:
        fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _somebody_listens(path):  # not one of ours: it has not locked
            raise BlockingIOError
    except BlockingIOError:
        raise MediumFault(
            "address", f"shared store {address}: somebody serves this address already"
        ) from None
    except OSError as error:
        raise MediumFault(
            "address", f"shared store {address} cannot be opened ({error.strerror})"
        ) from None
    return fd


def _somebody_listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(path) == 0


def run(
    address: str,
    capacity_mib: float,
    limits: StoreLimits,
    watch_stdin: bool = False,
    transport: str = "direct",
    on_ready: Callable[[], None] = lambda: None,
    private: bool = False,
) -> None:
    """Serve until SIGTERM, SIGINT, or the end of standard input (MediumFault); see StoreServer."""
    server = StoreServer(address, capacity_mib, limits, private, transport)
    on_ready()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.serve(sys.stdin.fileno() if watch_stdin else None)


def main() -> None:
    """The private store's entry: a fault is one sentence on stderr and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--mib", type=float, required=True)
    parser.add_argument("--ttl-s", type=float, default=StoreLimits.ttl_s)
    parser.add_argument("--lease-s", type=float, default=StoreLimits.lease_s)
    parser.add_argument("--put-timeout-s", type=float, default=StoreLimits.put_timeout_s)
    parser.add_argument("--quarantine-s", type=float, default=StoreLimits.quarantine_s)
    parser.add_argument("--watch-stdin", action="store_true")
    parser.add_argument("--transport", choices=SHARED_TRANSPORTS, default="direct")
    given = parser.parse_args()
    try:
        limits = StoreLimits(given.ttl_s, given.lease_s, given.put_timeout_s, given.quarantine_s)
        private = given.watch_stdin
        run(given.address, given.mib, limits, private, given.transport, private=private)
    except (MediumFault, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    main()
