"""A text of the user's that measurements read instead of the built-in one."""

import hashlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RequestError

MAX_TEXT_BYTES = 512 * 1024
MAX_NAME = 40


@dataclass(frozen=True)
class OwnText:
    """A text and its file's name; `label` tells texts apart whose files are named alike."""

    name: str
    text: str

    @property
    def label(self) -> str:
        """`notes.txt (1a2b3c4d)`."""
        return f"{self.name} ({hashlib.sha256(self.text.encode()).hexdigest()[:8]})"


def read_text(name: str, data: bytes) -> OwnText:
    """A file's text; RequestError in one sentence where it is empty, too large or no UTF-8."""
    name = re.sub(r"[^\w.-]", "_", Path(name).name)[-MAX_NAME:] or "text"
    if len(data) > MAX_TEXT_BYTES:
        raise RequestError(
            f"{name} has {len(data):,} bytes: give a text of at most {MAX_TEXT_BYTES // 1024} KiB"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{name} is no UTF-8 text (byte {error.start:,}): save it as UTF-8"
        ) from error
    if "\0" in text:
        raise RequestError(f"{name} holds zero bytes, so it is no text: choose a text file")
    if not text.strip():
        raise RequestError(f"{name} is empty: give some pages of text")
    return OwnText(name, text)


class TextFile:
    """The file that a job's process reads an `OwnText` from; nobody else may."""

    def __init__(self, own: OwnText) -> None:
        """Write it; RequestError where that is not possible."""
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="kv-workbench-text-")  # mode 0700
            self.path = Path(self._folder.name) / own.name
            self.path.write_text(own.text, encoding="utf-8", newline="")
        except OSError as error:
            raise RequestError(
                f"{own.name} cannot be handed to the measurement ({error.strerror}): make room in "
                f"{tempfile.gettempdir()}"
            ) from error

    def close(self) -> None:
        """Delete it; twice is harmless."""
        self._folder.cleanup()
