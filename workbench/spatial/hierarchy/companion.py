"""A process that a medium starts for itself, and that ends with it whatever happens to us."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

_SHUTDOWN_S = 3.0
_LOCK = "alive"
_WATCHED = (
    'exec 3<&0; "$@" </dev/null 3<&- & child=$!; '
    '{ read -r _ <&3; kill -9 "$child"; } 2>/dev/null & wait "$child"; kill $! 2>/dev/null'
)


def watched(command: Sequence[str]) -> list[str]:
    """A command that does not watch its standard input, under a shell that does.

    The end of the pipe ends the command, and the end of the command ends the shell.
    """
    return ["sh", "-c", _WATCHED, "sh", *command]


class Companion:
    """Runs a command beside a private folder (mode 0700), whose name begins with `prefix`.

    Its standard input is a pipe that ends when this process does, by whatever signal: the command
    has to watch it. Folders that killed processes left are removed by the next one. OSError if the
    folder or the process cannot be made.
    """

    def __init__(self, prefix: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self.process: subprocess.Popen[bytes] | None = None
        making = self.folder / "making"
        self._lock = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        making.rename(self.folder / _LOCK)  # nobody sees it unlocked while we live
        _sweep(self.folder.parent, prefix)
        self._running: list[subprocess.Popen[bytes]] = []
        self._starting = threading.Lock()
        self._unplugged = False
        self._finalizer = weakref.finalize(self, _end, self._running, self.folder, self._lock)

    @property
    def log_file(self) -> Path:
        """What the process printed."""
        return self.folder / "log.txt"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def start(self, command: Sequence[str]) -> None:
        """Start the command; one that runs already is ended before. Nothing while unplugged."""
        with self._starting:
            if self._unplugged:
                return
            _stop(self._running)
            # A session of its own keeps Ctrl-C in the terminal ours.
            with self.log_file.open("wb") as log:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._running.append(self.process)

    def unplug(self) -> None:
        """End the process, and start none until `plug_in`."""
        with self._starting:
            self._unplugged = True
            _stop(self._running)

    def plug_in(self) -> None:
        """The process may be started again."""
        with self._starting:
            self._unplugged = False

    def last_line(self) -> str:
        """The last line that the process printed, for a message about its end."""
        try:
            lines = self.log_file.read_text(errors="replace").strip().splitlines()
        except OSError:  # killed and removed from outside: nothing to say
            lines = []
        return lines[-1][:200] if lines else ""

    def close(self) -> None:
        """End the process and remove its folder."""
        self._finalizer()


def _stop(running: list["subprocess.Popen[bytes]"]) -> None:
    while running:
        process = running.pop()
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_SHUTDOWN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end(running: list["subprocess.Popen[bytes]"], folder: Path, lock: int) -> None:
    _stop(running)
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(root: Path, prefix: str) -> None:
    """Remove folders of this user whose process is gone: the kernel has unlocked them."""
    for folder in root.glob(prefix + "*"):
        with contextlib.suppress(OSError):  # vanished, locked, or another user's
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
