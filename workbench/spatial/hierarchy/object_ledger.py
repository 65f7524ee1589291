"""How much of a hard cap the objects of a store take, as last listed and changed since."""

import threading


class ObjectLedger:
    """Sizes by path under one cap (`capacity_bytes`, 0 = none); safe from several threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._sizes: dict[str, int] = {}
        self._used_bytes = 0
        self._reserved_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes of the objects known."""
        with self._lock:
            return self._used_bytes

    def resize(self, capacity_bytes: int) -> None:
        """Take a new cap."""
        with self._lock:
            self._capacity_bytes = capacity_bytes

    def replace(self, sizes: dict[str, int]) -> None:
        """Take over a fresh listing."""
        with self._lock:
            self._sizes = dict(sizes)
            self._used_bytes = sum(sizes.values())

    def reserve(self, num_bytes: int) -> bool:
        """Take room for an object that is being written; False where the cap leaves none."""
        with self._lock:
            total = self._used_bytes + self._reserved_bytes + num_bytes
            if self._capacity_bytes and total > self._capacity_bytes:
                return False
            self._reserved_bytes += num_bytes
            return True

    def release(self, num_bytes: int) -> None:
        """Give a reservation back, once the object is counted or was not written."""
        with self._lock:
            self._reserved_bytes -= num_bytes

    def add(self, path: str, num_bytes: int) -> None:
        """Count an object."""
        with self._lock:
            self._used_bytes += num_bytes - self._sizes.get(path, 0)
            self._sizes[path] = num_bytes

    def remove(self, path: str) -> None:
        """Count an object no more."""
        with self._lock:
            self._used_bytes -= self._sizes.pop(path, 0)
