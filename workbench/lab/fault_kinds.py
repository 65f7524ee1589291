"""The faults of `fault_run`, each real: bits, files, processes, full and slow media."""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.config import TierSettings
from workbench.lab.fault_places import SmallDisk, StoreProcess
from workbench.spatial.hierarchy.faults import inject
from workbench.spatial.hierarchy.hierarchy import Hierarchy

MIB = 2**20
ANY, GONE = "any", "gone"  # of a fault's words: whatever it is, and a miss that is no fault
Strike = Callable[[Hierarchy, np.random.Generator], None]
Active = Callable[[Hierarchy], contextlib.AbstractContextManager[None]]


def _unharmed(hierarchy: Hierarchy, rng: np.random.Generator) -> None:
    """A state that lasts does the harm, not a blow."""


@contextlib.contextmanager
def _stateless(hierarchy: Hierarchy) -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Fault:
    """`active` lasts as long as the fault does; `strike` is called again and again meanwhile.

    `word`: what tier counts it under which word, where it is sure to be met. `missing` says why it
    cannot be here, if so.
    """

    name: str
    strike: Strike = _unharmed
    active: Active = _stateless
    word: tuple[str, str] = ("", "")
    missing: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class Ladder:
    """Tiers with the faults that they go through; `running` has what they need."""

    name: str
    running: Callable[[], contextlib.AbstractContextManager[TierSettings]]
    faults: list[Fault]


def ladders(folder: Path, page_bytes: int) -> list[Ladder]:
    """A disk over a store process over objects, and a disk over a Valkey.

    Each tier is larger than the one above it, and too small for all pages but the last, so that
    each is read too.
    """
    disk = TierSettings(
        dram_mib=20 * page_bytes / MIB, disk_mib=40 * (page_bytes + 4096) / MIB,
        disk_path=str(folder / "disk"), write="through",  # so that each tier has pages to lose
    )  # fmt: skip
    store = StoreProcess(f"ipc://{folder}/store", 80 * (page_bytes + 4096) / MIB)
    objects = SmallDisk(folder / "objects", mib=96)

    @contextlib.contextmanager
    def with_store() -> Iterator[TierSettings]:
        with objects.mounted(), store.serving():
            yield dataclasses.replace(
                disk, shared="store", shared_address=store.address, shared_mib=store.mib,
                object_url=str(objects.path), object_mib=64.0,
            )  # fmt: skip

    @contextlib.contextmanager
    def with_valkey() -> Iterator[TierSettings]:
        yield dataclasses.replace(disk, shared="valkey", shared_mib=32.0)

    damage = [
        Fault("flipped bits", _injects("corrupt_dram", "corrupt_disk"), word=("G3", ANY)),
        Fault("a cut file", _injects("cut_disk"), word=("G3", ANY)),
        Fault(
            "holes and strangers' bytes", _injects("punch_disk", "foreign_disk"), word=("G3", ANY)
        ),
        Fault("a slow disk", active=_slow_disk),
    ]
    gone = ("G3.5", "unreachable")
    below = [
        Fault("vanished objects", _deletes(objects.path), word=("G4", GONE)),
        Fault(
            "a full disk below objects (ENOSPC)", active=lambda hierarchy: objects.filled(),
            word=("G4", "disk_full"), missing=objects.why_not,
        ),
        Fault("a killed store", active=lambda hierarchy: store.killed(), word=gone),
        Fault("refused connections", active=lambda hierarchy: store.refusing(), word=gone),
        Fault("a silent port", active=lambda hierarchy: store.silent(), word=gone),
        Fault(
            "expired leases", active=lambda hierarchy: store.short_leases(),
            word=("G3.5", "expired"),
        ),
    ]  # fmt: skip
    return [
        Ladder("disk, store, objects", with_store, damage + below),
        Ladder("disk, Valkey", with_valkey, [Fault("a killed Valkey", _kills_valkey, word=gone)]),
    ]


def _injects(*kinds: str) -> Strike:
    def strike(hierarchy: Hierarchy, rng: np.random.Generator) -> None:
        inject(hierarchy, kinds[int(rng.integers(len(kinds)))], rng)

    return strike


@contextlib.contextmanager
def _slow_disk(hierarchy: Hierarchy) -> Iterator[None]:
    before = hierarchy.settings
    hierarchy.configure(dataclasses.replace(before, disk_throttle_mb_s=2.0))
    try:
        yield
    finally:
        hierarchy.configure(before)


def _deletes(folder: Path) -> Strike:
    def strike(hierarchy: Hierarchy, rng: np.random.Generator) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if files:
            files[int(rng.integers(len(files)))].unlink(missing_ok=True)

    return strike


def _kills_valkey(hierarchy: Hierarchy, rng: np.random.Generator) -> None:
    if rng.random() < 0.05:
        for child in _children(b"valkey-server"):
            os.kill(child, signal.SIGKILL)


def _children(name: bytes) -> list[int]:
    """Processes below this one whose command line has `name`."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if any(name in part.encode() for part in process.cmdline()):
                found.append(process.pid)
    return found
