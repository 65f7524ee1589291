"""The folder a disk tier writes to: private by default, locked, and emptied when closed, unless
the user wants its pages kept."""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import weakref

from workbench.errors import TierError

SUBFOLDER = "kv-workbench-tier"
PRIVATE_PREFIX = "kv-workbench-"
LOCK = "lock"
PAGES = "pages.kv"
OURS = re.compile(r"^(page-[0-9a-f]{32}-\d+\.kv|writing-\d+\.tmp|pages\.kv)$")


class DiskFolder:
    """An open, locked folder of page files.

    `user_path` empty: a fresh private folder under the system's temporary one, removed at close.
    Otherwise a subfolder of the user's path, which one engine at a time may use; with `keep` the
    file of pages in it stays, now and at close. TierError if it cannot be created, written or
    locked.
    """

    def __init__(self, user_path: str, keep: bool = False) -> None:
        self.user_path = user_path
        self.keep = keep and bool(user_path)
        self.path = _private_folder() if not user_path else _user_folder(user_path)
        lock = _lock(self.path)
        try:
            for name in os.listdir(self.path):  # left by an engine that died
                if OURS.match(name) and not (self.keep and name == PAGES):
                    os.unlink(os.path.join(self.path, name))
            _try_writing(self.path)
        except OSError as error:
            os.close(lock)
            raise TierError(_cannot_write(self.path, error)) from None
        self._lock = lock
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, self.keep)

    @property
    def file_path(self) -> str:
        """Where the one file of all pages lies."""
        return os.path.join(self.path, PAGES)

    def names(self) -> list[str]:
        """Names of our page and temporary files that exist now."""
        try:
            return [name for name in os.listdir(self.path) if OURS.match(name)]
        except OSError:  # deleted from outside: reads of its pages are counted misses
            return []

    def close(self, keep: bool = True) -> None:
        """Delete our files, and the folder if nothing else is in it; unlock.

        `keep` False deletes the file of pages also where it was to stay.
        """
        if self._finalizer.detach():
            _remove(self.path, self._lock, self.keep and keep)


def _private_folder() -> str:
    try:
        path = tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=_temporary_root())
        _sweep(path)
        return path
    except OSError as error:
        raise TierError(
            f"no temporary folder can be made ({error.strerror}): give tiers.disk_path a folder "
            "you may write to"
        ) from None


def _temporary_root() -> str:
    """The system's temporary folder, or /var/tmp where the former lies in memory (tmpfs)."""
    root = tempfile.gettempdir()
    try:
        with open("/proc/mounts", encoding="utf-8") as mounts:
            kinds = {line.split()[1]: line.split()[2] for line in mounts}
    except OSError:  # no such file outside Linux: nobody says what lies in memory
        return root
    if "TMPDIR" not in os.environ and kinds.get(os.path.realpath(root)) == "tmpfs":
        return "/var/tmp" if os.access("/var/tmp", os.W_OK) else root
    return root


def _sweep(fresh: str) -> None:
    """Remove private folders of engines that died: unlocked, ours, and a minute older."""
    root, info = os.path.dirname(fresh), os.stat(fresh)
    for name in os.listdir(root):
        path = os.path.join(root, name)
        try:
            other = os.lstat(path)
            dead = stat.S_ISDIR(other.st_mode) and other.st_uid == info.st_uid
            if name.startswith(PRIVATE_PREFIX) and dead and other.st_mtime < info.st_mtime - 60:
                lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:  # locked: its engine is alive
                    os.close(lock)
                else:
                    _remove(path, lock)
        except OSError:
            continue  # vanished, or no lock file: not a dead engine's folder


def _user_folder(user_path: str) -> str:
    base = os.path.abspath(os.path.expanduser(user_path))
    path = os.path.join(base, SUBFOLDER)
    try:
        os.makedirs(base, exist_ok=True)
        if not os.path.lexists(path):
            os.mkdir(path, 0o700)
        info = os.lstat(path)
    except OSError as error:
        raise TierError(_cannot_write(base, error)) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise TierError(
            f"{path!r} is a link, a file or another user's folder: give tiers.disk_path another "
            "folder"
        )
    return path


def _lock(path: str) -> int:
    try:
        lock = os.open(
            os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        raise TierError(_cannot_write(path, error)) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise TierError(
            f"the disk tier's file {os.path.join(path, PAGES)!r} is in use by another engine: give "
            "tiers.disk_path another folder or close that engine"
        ) from None
    return lock


def _try_writing(path: str) -> None:
    name = os.path.join(path, "writing-0.tmp")
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    os.unlink(name)


def _cannot_write(path: str, error: OSError) -> str:
    return (
        f"the disk tier cannot write to {path!r} ({error.strerror}): give tiers.disk_path a folder "
        "you may write to"
    )


def _remove(path: str, lock: int, keep: bool = False) -> None:
    try:
        # A folder that vanished is what we want, and one with a stranger's file must stay. What
        # cannot be deleted is left to the next engine's search for folders of dead ones.
        with contextlib.suppress(OSError):
            for name in os.listdir(path):
                if name == LOCK or (OURS.match(name) and not (keep and name == PAGES)):
                    target = os.path.join(path, name)
                    if os.path.isdir(target) and not os.path.islink(target):
                        shutil.rmtree(target, ignore_errors=True)
                    else:
                        os.unlink(target)
            os.rmdir(path)
    finally:
        os.close(lock)
