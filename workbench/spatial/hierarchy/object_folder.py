"""The folder of objects that the workbench chose by itself: hidden for a while, and shown again.

    objects/              hidden      objects (a file)      objects.unplugged/

The file keeps the folder from being made anew by the next write. An engine that died while its
folder was hidden leaves it so; the next one shows it again when it opens it.
"""

import os

from workbench.model.fetch import cache_dir

HIDDEN = ".unplugged"


def is_own(folder: str) -> bool:
    """Whether a folder lies in the workbench's own cache folder, where nobody else puts things."""
    own = os.path.realpath(cache_dir())
    return os.path.realpath(folder).startswith(own + os.sep)


def hide_folder(folder: str) -> None:
    """Rename a folder and put a file in its place. OSError."""
    os.rename(folder, folder + HIDDEN)
    os.close(os.open(folder, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def show_folder(folder: str) -> None:
    """Undo `hide_folder`, where that was done. OSError."""
    if os.path.isdir(folder + HIDDEN):
        if os.path.isfile(folder):
            os.unlink(folder)
        os.rename(folder + HIDDEN, folder)
