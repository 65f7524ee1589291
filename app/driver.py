"""Which browser tab may change settings; all others watch."""

import threading
from collections import Counter
from collections.abc import Callable


class Driver:
    """One tab drives. A tab is named by the id it keeps across reloads.

    The first tab drives. When the driver's last socket closes, its seat is kept for its return
    (a reload), unless another tab changes something first: that one takes over. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: Counter[str] = Counter()
        self._driver = ""
        self._on_change: Callable[[], None] | None = None

    @property
    def driver(self) -> str:
        """Id of the tab that drives, also while it reloads; empty if none ever did."""
        return self._driver

    @property
    def connected_driver(self) -> str | None:
        """The tab that drives, if it is open; None while every tab may take the wheel."""
        with self._lock:
            return self._driver if self._driver in self._sockets else None

    @property
    def num_viewers(self) -> int:
        """Open tabs, the driver's included."""
        return len(self._sockets)

    def may_drive(self, tab: str) -> bool:
        """Whether a change made in this tab would be accepted now."""
        with self._lock:
            return self._may_drive(tab)

    is_driver = may_drive

    def claim(self, tab: str) -> bool:
        """Call before a change: True if `tab` may make it, and from now on it drives."""
        with self._lock:
            allowed = self._may_drive(tab)
            changed = allowed and bool(tab) and self._driver != tab
            if changed:
                self._driver = tab
        if changed:
            self._tell()
        return allowed

    def take_over(self, tab: str) -> None:
        """Let this tab drive, whoever drove before."""
        with self._lock:
            changed = bool(tab) and self._driver != tab
            self._driver = tab or self._driver
        if changed:
            self._tell()

    def connected(self, tab: str) -> None:
        """A tab opened a socket."""
        with self._lock:
            self._sockets[tab] += 1
            self._driver = self._driver or tab
        self._tell()

    def disconnected(self, tab: str) -> None:
        """A tab's socket closed."""
        with self._lock:
            self._sockets[tab] -= 1
            if self._sockets[tab] <= 0:
                del self._sockets[tab]
        self._tell()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back when the driver or the number of viewers changes."""
        self._on_change = callback

    def _may_drive(self, tab: str) -> bool:
        return self._driver in ("", tab) or self._driver not in self._sockets

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change()
