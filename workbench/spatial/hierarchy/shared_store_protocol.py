"""Messages between engines and a shared store: small ones over ZeroMQ, pages in shared memory.

    put    Allocate -> where to write;  the client copies;  Commit makes it visible
    get    Acquire  -> where to read, under a lease;  the client copies, then looks at the clock
           again, since what a lease no longer holds may be another page by now;  Release

A message is two frames: magic and version, then msgpack. A store that speaks another version
answers with its own first frame alone. Calls carry the number of the arena that the client has
mapped, so that a store started anew never takes offsets of its predecessor.
"""

import os
import stat
import struct
from urllib.parse import urlsplit

import msgspec

from workbench.settings.addresses import secret_part
from workbench.spatial.hierarchy.addresses import is_loopback
from workbench.spatial.hierarchy.medium import MediumFault

MAGIC = b"KVWS"
VERSION = 1
BLOCK = 4096
MAX_RUNS = 64  # pieces that one page may lie in
MAX_BATCH = 65_536
MAX_HOLD_MS = 30_000
MAX_SOCKET_PATH = 100  # the kernel takes 107 bytes, the file of the lock needs some
ARENA_MAGIC = b"KVWARENA"
ARENA_HEAD = struct.Struct("<8sQ")
_PREFIX = struct.Struct("<4sH")

Runs = list[tuple[int, int]]  # (first block, number of blocks)


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Answered with a Welcome."""


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Room for pages: names, bytes, and which belong to one engine; answered with Slots."""

    names: list[bytes]
    num_bytes: list[int]
    private: list[bool]


class Commit(msgspec.Struct, frozen=True, tag=True):
    """What was written is whole (or, where not kept, void); answered with reasons."""

    tickets: list[int]
    kept: list[bool]


class Acquire(msgspec.Struct, frozen=True, tag=True):
    """Leases on pages; answered with Leases."""

    names: list[bytes]
    lease_ms: int


class Release(msgspec.Struct, frozen=True, tag=True):
    """The copies are made; not answered."""

    tickets: list[int]


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Answered with the header of each page, empty where there is none."""

    names: list[bytes]


class Remove(msgspec.Struct, frozen=True, tag=True):
    """Forget pages; answered with how many were there."""

    names: list[bytes]


class Prestage(msgspec.Struct, frozen=True, tag=True):
    """Refresh pages and hold them for so long; answered with which are there."""

    names: list[bytes]
    hold_ms: int


class Scan(msgspec.Struct, frozen=True, tag=True):
    """Answered with (header, real bytes) of all shared pages, oldest use first."""


class GetUsage(msgspec.Struct, frozen=True, tag=True):
    """Answered with a Usage."""


class Seal(msgspec.Struct, frozen=True, tag=True):
    """Take no page more, or take pages again; an engine's own store alone knows it."""

    sealed: bool


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The client goes: its private pages are void; answered with nothing of note."""


Body = (
    Hello
    | Allocate
    | Commit
    | Acquire
    | Release
    | Probe
    | Remove
    | Prestage
    | Scan
    | GetUsage
    | Seal
    | Bye
)


class Call(msgspec.Struct, frozen=True, array_like=True):
    """`owner`: 16 random bytes of one client; `arena`: the number it was told in Welcome."""

    call_id: int
    arena: int
    owner: bytes
    body: Body


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`error`: empty, "stale" for another arena, or "malformed"."""

    call_id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""


class Welcome(msgspec.Struct, frozen=True):
    """Which memory to map: descriptor `fd` of process `pid`, with `arena` in its first bytes.

    `nixl`: metadata of the agent that offers it to UCX, at address `nixl_base`; empty without.
    """

    pid: int
    fd: int
    arena: int
    arena_bytes: int
    lease_ms: int
    put_timeout_ms: int
    nixl: bytes = b""
    nixl_base: int = 0


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """Where to write; `reason` is empty, full or too_large."""

    reason: str = ""
    ticket: int = 0
    runs: Runs = []


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Where to read; `reason` is empty or gone."""

    reason: str = ""
    ticket: int = 0
    header: bytes = b""
    runs: Runs = []


class Usage(msgspec.Struct, frozen=True):
    """Bytes in use by this client's pages and by all, the cap, and what has gone by itself.

    `num_leased`: pages that a reader holds now; `num_held`: those kept for a request that waits.
    """

    own_bytes: int
    used_bytes: int
    capacity_bytes: int
    num_pages: int
    num_evicted: int
    num_expired: int
    num_leased: int = 0
    num_held: int = 0


def prefix() -> bytes:
    """The first frame."""
    return _PREFIX.pack(MAGIC, VERSION)


def version_of(frame: bytes) -> int | None:
    """The version that a first frame names; None for one of something else."""
    if len(frame) != _PREFIX.size or frame[:4] != MAGIC:
        return None
    version: int = _PREFIX.unpack(frame)[1]
    return version


def check_address(address: str) -> None:
    """ipc:// with a path, or tcp:// on this machine; MediumFault with one sentence otherwise."""
    if part := secret_part(address):
        raise MediumFault("address", f"the address of a shared store holds no {part}: leave it out")
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if os.path.isabs(path) and len(path.encode()) <= MAX_SOCKET_PATH:
            return
        raise MediumFault(
            "address",
            "the address of a shared store: give ipc:// and an absolute path "
            f"of at most {MAX_SOCKET_PATH} bytes",
        )
    try:
        parts = urlsplit(address)
        fine = parts.scheme == "tcp" and is_loopback(parts.hostname) and parts.port is not None
    except ValueError:
        fine = False
    if not fine:
        raise MediumFault(
            "address",
            "the address of a shared store: give ipc:///path, or tcp:// with a port of this "
            "machine (its memory is shared, so it cannot lie on another one)",
        )


def private_folder(path: str) -> None:
    """Make the folder of a socket, or see that nobody else may enter it (MediumFault)."""
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise MediumFault(
            "address", f"the folder {path} of a shared store cannot be used ({error.strerror})"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise MediumFault(
            "address",
            f"the folder {path} of a shared store has to be yours with mode 0700: "
            f"choose another or run chmod 700 {path}",
        )
