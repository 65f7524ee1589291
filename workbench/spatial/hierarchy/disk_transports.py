"""How a disk tier's bytes move: io_uring of our own, or an optional library behind the same calls.

    direct   io_uring or preadv, always there       (direct_io.py)
    nixl     NIXL's POSIX plug-in over io_uring      pip install 'kv-workbench[transports]'
    kvikio   NVIDIA's library of GPUDirect Storage   pip install 'kv-workbench[gds]'

What fails there is tried again piece by piece with plain calls, which tell why; nothing is hidden.
"""

import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from workbench.spatial.hierarchy.aligned import address
from workbench.spatial.hierarchy.direct_io import (
    DirectIo,
    DiskWays,
    FileIo,
    Piece,
    move_singly,
)
from workbench.spatial.hierarchy.io_counts import IoCounts
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.nixl_agent import NixlAgent, NixlTransfer

BATCH_BYTES = 4 << 20  # one of these is made while another moves
BATCH_PIECES = 128
WHOLE_FILE = 1 << 62


def open_io(file: int, ways: DiskWays) -> FileIo:
    """The transport that `ways` names; MediumFault in one sentence where it cannot be had."""
    if ways.transport == "nixl":
        return NixlIo(file)
    if ways.transport == "kvikio":
        return KvikioIo(file)
    return DirectIo(file, ways)


class SwitchedIo:
    """A `FileIo` that another may take the place of while the tier works on."""

    def __init__(self, io: FileIo) -> None:
        self.io = io
        self.counts = io.counts

    @property
    def way(self) -> str:
        """How bytes move now."""
        return self.io.way

    @property
    def coalesce(self) -> bool:
        """Whether what follows each other is one I/O, where the way knows of that."""
        return self.io.coalesce

    @coalesce.setter
    def coalesce(self, coalesce: bool) -> None:
        self.io.coalesce = coalesce

    def run(self, pieces: Iterable[Piece], write: bool) -> dict[int, str]:
        """Move all pieces."""
        return self.io.run(pieces, write)

    def switch(self, io: FileIo) -> None:
        """Use another one from now on; counts go on."""
        self.io.close()
        io.counts = self.counts
        self.io = io

    def close(self) -> None:
        """Close the one in use."""
        self.io.close()


class NixlIo:
    """A `FileIo` on NIXL's POSIX plug-in, two batches at a time."""

    way = "NIXL POSIX"
    coalesce = False  # a descriptor a piece

    def __init__(self, file: int) -> None:
        self.counts = IoCounts()
        self._file = file
        self._agent = NixlAgent("POSIX", {"use_uring": "true"})
        self._registered = self._agent.register("FILE", [(0, WHOLE_FILE, file, "")])

    def run(self, pieces: Iterable[Piece], write: bool) -> dict[int, str]:
        """Move all pieces; a batch that fails is tried again with plain calls."""
        failed: dict[int, str] = {}
        moving: tuple[list[Piece], NixlTransfer] | None = None
        for batch in _batches(pieces):
            for piece in batch:
                self.counts.count(len(piece.view), write)
            here = [(_address(piece), len(piece.view)) for piece in batch]
            there = [(piece.offset, len(piece.view), self._file) for piece in batch]
            transfer = self._agent.begin(write, here, "FILE", there)
            failed |= self._end(moving, write)
            moving = batch, transfer
        return failed | self._end(moving, write)

    def close(self) -> None:
        """Let the agent forget the file."""
        self._agent.forget(self._registered)

    def _end(self, moving: tuple[list[Piece], NixlTransfer] | None, write: bool) -> dict[int, str]:
        if moving is None or moving[1].wait():
            return {}
        return move_singly(self._file, moving[0], write)


class KvikioIo:
    """A `FileIo` on kvikio. Pages are verified in host memory, so its POSIX path moves them.

    GPUDirect Storage, which kvikio is for, moves bytes to the memory of a GPU alone; what it would
    do there is said by `way`, so that nobody takes these figures for it.
    """

    coalesce = False  # a call a piece

    def __init__(self, file: int) -> None:
        self.counts = IoCounts()
        self._file = file
        kvikio = load_kvikio()
        try:  # the same file, whatever its name means by now
            self._handle: Any = kvikio.CuFile(f"/proc/self/fd/{file}", "r+")
            self._handle.pread(np.empty(0, np.uint8), 0).get()
        except (RuntimeError, OSError) as error:
            why = ": ".join(str(error).split(": ")[-3:])  # without the place in its source
            raise MediumFault(
                "not_installed",
                f"kvikio cannot move bytes on this machine ({why}): it needs NVIDIA's "
                "driver; choose another transport",
            ) from None
        gds = kvikio.cufile_driver.properties.is_gds_available
        self.way = f"kvikio POSIX (GPUDirect Storage {'idle' if gds else 'absent'})"

    def run(self, pieces: Iterable[Piece], write: bool) -> dict[int, str]:
        """Move all pieces; one that fails is tried again with plain calls."""
        call = self._handle.pwrite if write else self._handle.pread
        again: list[Piece] = []
        for batch in _batches(pieces):
            moving = []
            for piece in batch:
                self.counts.count(len(piece.view), write)
                memory = np.frombuffer(piece.view, np.uint8)
                moving.append((piece, call(memory, len(piece.view), piece.offset)))
            again += [piece for piece, future in moving if not _moved(future, len(piece.view))]
        return move_singly(self._file, again, write)

    def close(self) -> None:
        """Close kvikio's handle; ours stays open."""
        self._handle.close()


def load_kvikio() -> Any:
    """The module kvikio; MediumFault with one sentence where it is not installed."""
    if importlib.util.find_spec("kvikio") is None:
        raise MediumFault(
            "not_installed",
            "kvikio is not installed: run pip install 'kv-workbench[gds]', or choose another "
            "transport",
        )
    try:
        import kvikio
        import kvikio.cufile_driver
    except (ImportError, OSError) as error:
        raise MediumFault("not_installed", f"kvikio cannot be loaded here ({error})") from None
    return kvikio


def _moved(future: Any, num_bytes: int) -> bool:
    try:
        return bool(future.get() == num_bytes)
    except (RuntimeError, OSError):  # plain calls meet it again, and tell by its word
        return False


def _address(piece: Piece) -> int:
    return address(np.frombuffer(piece.view, np.uint8))


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        if not len(piece.view):
            continue
        batch.append(piece)
        size += len(piece.view)
        if size >= BATCH_BYTES or len(batch) == BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
