"""The faults of `fault_run`, each real: bits, files, processes, full and slow media."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.errors import WorkbenchError
from workbench.spatial.hierarchy.faults import inject
from workbench.spatial.hierarchy.hierarchy import Hierarchy

MIB = 2**20
START_S = 10.0
SERVE_STORE = (
    "from workbench.spatial.hierarchy.shared_store_server import run;"
    "from workbench.spatial.hierarchy.shared_store_index import StoreLimits;"
    "import sys; limits = StoreLimits(lease_s=float(sys.argv[3]));"
    "run(sys.argv[1], float(sys.argv[2]), limits, True)"
)
Strike = Callable[[Hierarchy, np.random.Generator], None]
Active = Callable[[Hierarchy], contextlib.AbstractContextManager[None]]


def _unharmed(hierarchy: Hierarchy, rng: np.random.Generator) -> None:
    """A state that lasts does the harm, not a blow."""


@contextlib.contextmanager
def _stateless(hierarchy: Hierarchy) -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Fault:
    """`active` lasts as long as the fault does; `strike` is called again and again meanwhile."""

    name: str
    strike: Strike = _unharmed
    active: Active = _stateless


@dataclass(frozen=True)
class Ladder:
    """Tiers with the faults that they go through; `running` has what they need."""

    name: str
    running: Callable[[], contextlib.AbstractContextManager[TierSettings]]
    faults: list[Fault]


def ladders(folder: Path, page_bytes: int) -> list[Ladder]:
    """A disk over a store process over objects, and a disk over a Valkey."""
    disk = TierSettings(
        dram_mib=max(1.0, 40 * page_bytes / MIB), disk_mib=max(4.0, 160 * page_bytes / MIB),
        disk_path=str(folder / "disk"),
    )  # fmt: skip
    store, objects = StoreProcess(f"ipc://{folder}/store", 64.0), folder / "objects"

    @contextlib.contextmanager
    def with_store() -> Iterator[TierSettings]:
        objects.mkdir(exist_ok=True)
        with store.serving():
            yield dataclasses.replace(
                disk, shared="store", shared_address=store.address, shared_mib=store.mib,
                object_url=str(objects), object_mib=64.0,
            )  # fmt: skip

    @contextlib.contextmanager
    def with_valkey() -> Iterator[TierSettings]:
        yield dataclasses.replace(disk, shared="valkey", shared_mib=32.0)

    damage = [
        Fault("flipped bits", _injects("corrupt_dram", "corrupt_disk")),
        Fault("a cut file", _injects("cut_disk")),
        Fault("holes and strangers' bytes", _injects("punch_disk", "foreign_disk")),
        Fault("a slow disk", active=_slow_disk),
    ]
    below = [
        Fault("vanished objects", _deletes(objects)),
        Fault("a full disk below objects", active=lambda hierarchy: _unwritable(objects)),
        Fault("a killed store, refused connections", active=lambda hierarchy: store.killed()),
        Fault("expired leases", active=lambda hierarchy: store.short_leases()),
    ]
    return [
        Ladder("disk, store, objects", with_store, damage + below),
        Ladder("disk, Valkey", with_valkey, [Fault("a killed Valkey", _kills_valkey)]),
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


@contextlib.contextmanager
def _unwritable(folder: Path) -> Iterator[None]:
    """No byte more fits below a folder: a file-size limit of this process, as a full disk is."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


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


class StoreProcess:
    """A shared store that can be killed and come back, at one address."""

    def __init__(self, address: str, mib: float) -> None:
        self.address, self.mib = address, mib
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """The store runs."""
        self._start(lease_s=5.0)
        try:
            yield
        finally:
            self._kill()

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        """The store is gone (SIGKILL); connections are refused."""
        self._kill()
        try:
            yield
        finally:
            self._start(lease_s=5.0)

    @contextlib.contextmanager
    def short_leases(self) -> Iterator[None]:
        """A store whose leases last a millisecond: most copies outlive them."""
        self._kill()
        self._start(lease_s=0.001)
        try:
            yield
        finally:
            self._kill()
            self._start(lease_s=5.0)

    def _start(self, lease_s: float) -> None:
        command = [sys.executable, "-c", SERVE_STORE, self.address, f"{self.mib}", f"{lease_s}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        socket, clock = Path(self.address.removeprefix("ipc://")), RealClock()
        started_s = clock.now_s()
        while not socket.exists():
            if self._process.poll() is not None or clock.now_s() - started_s > START_S:
                raise WorkbenchError(f"the store at {self.address} did not start")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_S)
            Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)
