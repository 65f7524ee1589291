"""A descriptor whose file is gone for a while, as that of a disk that was pulled out."""

import os


class PulledFile:
    """From its making on every read and write of `file` fails with EBADF, under any open ring.

    The descriptor keeps its number and its file's size; I/O under way goes on. OSError where the
    system does not let a file be opened by its descriptor.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        name_only = os.open(f"/proc/self/fd/{file}", os.O_PATH | os.O_CLOEXEC)
        try:
            self._kept = os.dup(file)
            os.dup2(name_only, file, inheritable=False)
        finally:
            os.close(name_only)

    def give_back(self) -> None:
        """The descriptor reads and writes its file again."""
        os.dup2(self._kept, self._file, inheritable=False)
        os.close(self._kept)
