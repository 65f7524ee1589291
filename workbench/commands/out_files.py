"""Files that commands write: refused before minutes are spent on measuring, not after."""

import os
from pathlib import Path

from workbench.errors import RequestError


def writable(path: Path | None) -> Path | None:
    """An option's file, if it can be written; RequestError in one sentence otherwise."""
    if path is None:
        return None
    if path.is_dir():
        raise RequestError(f"{path} is a folder: name a file to write")
    if not path.parent.is_dir():
        raise RequestError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RequestError(f"{path} cannot be written: name a file that you may write")
    return path


def write_file(path: Path, data: bytes) -> None:
    """Write; RequestError in one sentence if the disk is full, say."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise RequestError(
            f"{path} cannot be written ({error.strerror}): name a file elsewhere"
        ) from None
