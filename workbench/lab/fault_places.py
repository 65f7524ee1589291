"""Where faults of `fault_kinds` happen: a small disk, and a store that dies, refuses or is mute."""

import contextlib
import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from workbench.clock import RealClock
from workbench.errors import WorkbenchError

START_S = 10.0
SERVE_STORE = (
    "from workbench.spatial.hierarchy.shared_store_server import run;"
    "from workbench.spatial.hierarchy.shared_store_index import StoreLimits;"
    "import sys; limits = StoreLimits(lease_s=float(sys.argv[3]));"
    "run(sys.argv[1], float(sys.argv[2]), limits, True)"
)


class SmallDisk:
    """A file system of `mib` of its own in a folder, where mounting one is allowed."""

    def __init__(self, path: Path, mib: int) -> None:
        self.path, self._mib, self._why_not = path, mib, "not mounted"

    def why_not(self) -> str:
        """Why it cannot be filled; empty where it can."""
        return self._why_not

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """The folder is there, and a tmpfs on it if this process may mount one."""
        self.path.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self._mib}m,mode=0700", "tmpfs"]
        try:
            done = subprocess.run([*mount, str(self.path)], capture_output=True, timeout=START_S)
            self._why_not = "" if done.returncode == 0 else "mounting a small disk needs root"
        except OSError:
            self._why_not = "there is no mount command"
        try:
            yield
        finally:
            if not self._why_not:
                subprocess.run(["umount", str(self.path)], check=True, timeout=START_S)

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """A foreign file takes every block that is free: writes end with ENOSPC."""
        foreign = self.path / "foreign"
        with open(foreign, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        try:
            yield
        finally:
            foreign.unlink()


class StoreProcess:
    """A shared store that can be killed and come back, at one address."""

    def __init__(self, address: str, mib: float) -> None:
        self.address, self.mib = address, mib
        self._path = Path(address.removeprefix("ipc://"))
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
        """The store is gone (SIGKILL), and nothing lies at its address."""
        self._kill()
        try:
            yield
        finally:
            self._start(lease_s=5.0)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Its address is bound, and nobody listens there: connections are refused."""
        with self.killed(), self._bound():
            yield

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Somebody takes connections at its address, and never says a word."""
        with self.killed(), self._bound() as bound:
            bound.listen(64)
            yield

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

    @contextlib.contextmanager
    def _bound(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(self._path))
            try:
                yield bound
            finally:
                self._path.unlink()

    def _start(self, lease_s: float) -> None:
        command = [sys.executable, "-c", SERVE_STORE, self.address, f"{self.mib}", f"{lease_s}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        clock = RealClock()
        started_s = clock.now_s()
        while not self._path.exists():
            if self._process.poll() is not None or clock.now_s() - started_s > START_S:
                raise WorkbenchError(f"the store at {self.address} did not start")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_S)
            self._path.unlink(missing_ok=True)
