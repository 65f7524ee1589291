"""G3 as a folder: one file a page, under a hard cap on the real bytes of all files."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence

from workbench.spatial.hierarchy.disk_folder import DiskFolder
from workbench.spatial.hierarchy.medium import Done, Get, MediumFault, PageRecord, Put
from workbench.spatial.hierarchy.page_file import (
    ALIGN,
    fault_reason,
    header_bytes,
    read_payload,
    write_file,
)


class FolderMedium:
    """Files of one open folder; implements `Medium`."""

    shared = False
    persistent = False

    def __init__(self, folder: DiskFolder, capacity_bytes: int) -> None:
        self.folder = folder
        self.place = folder.path
        self.write_to = ""  # fault injection: the next page goes to this device instead
        self._cap_bytes = capacity_bytes
        self._real: dict[bytes, int] = {}
        self._real_bytes = 0
        self._slack_bytes = 0  # what the file system charges above the file's size
        self._stuck: set[bytes] = set()  # files that could not be deleted
        self._number = 0

    def file_path(self, key: bytes) -> str:
        """Path of a page's file."""
        digest = hashlib.sha256(key).hexdigest()[:32]
        return os.path.join(self.folder.path, f"page-{digest}-0.kv")

    def charge_bytes(self, record: PageRecord) -> int:
        """Header and page in whole blocks."""
        size = header_bytes(len(record.key), len(record.checksums))
        return size + -(-record.payload_bytes // ALIGN) * ALIGN + self._slack_bytes

    def put(self, puts: Sequence[Put]) -> list[Done]:
        """Write each page under a temporary name and rename it."""
        return [self._each(lambda put=put: self._put(put)) for put in puts]  # type: ignore[misc]

    def get(self, gets: Sequence[Get]) -> list[Done]:
        """Read each page after its header was compared with the record."""
        return [self._each(lambda get=get: self._get(get)) for get in gets]  # type: ignore[misc]

    def remove(self, keys: Sequence[bytes]) -> list[Done]:
        """Delete files; one that cannot be deleted stays counted, so that the cap holds."""
        return [self._each(lambda key=key: self._remove(key)) for key in keys]  # type: ignore[misc]

    def probe(self, keys: Sequence[bytes]) -> list[PageRecord | None]:
        """Nothing: nobody else writes here, so that the tier knows."""
        return [None] * len(keys)

    def scan(self) -> Iterator[tuple[PageRecord, int]]:
        """Nothing: the folder is emptied when it is opened."""
        return iter(())

    def resize(self, capacity_bytes: int) -> bool:
        """Take a new cap."""
        self._cap_bytes = capacity_bytes
        return True

    @property
    def real_bytes(self) -> int:
        """Bytes on disk (st_blocks * 512) of the files that are there."""
        total = 0
        stuck = {os.path.basename(self.file_path(key)) for key in self._stuck}
        for name in self.folder.names():
            if name not in stuck:
                with contextlib.suppress(OSError):  # gone since the listing: nothing to count
                    total += os.lstat(os.path.join(self.folder.path, name)).st_blocks * 512
        return total

    def close(self, keep: bool) -> None:
        """Delete every file and the folder."""
        self.folder.close()

    def _each(self, run: Callable[[], int]) -> Done:
        try:
            return Done("", run())
        except (OSError, MediumFault) as error:
            return Done(fault_reason(error))

    def _put(self, put: Put) -> int:
        self._number += 1
        temporary = os.path.join(self.folder.path, f"writing-{self._number}.tmp")
        device, self.write_to = self.write_to, ""
        need = self.charge_bytes(put.record)
        if self._real_bytes + need > self._cap_bytes:
            raise MediumFault("over_cap")
        try:
            real = write_file(temporary, put.record, put.payload, device)
            self._slack_bytes = max(self._slack_bytes, real - (need - self._slack_bytes))
            if self._real_bytes + real > self._cap_bytes:
                raise MediumFault("over_cap")
            os.rename(temporary, self.file_path(put.record.key))
        except (OSError, MediumFault):
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._real[put.record.key] = real
        self._real_bytes += real
        return real

    def _get(self, get: Get) -> int:
        read_payload(self.file_path(get.record.key), get.record, get.offset, get.out)
        return 0

    def _remove(self, key: bytes) -> int:
        try:
            # A file that is not there is what we want: its write failed, or somebody deleted it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.file_path(key))
        except OSError:
            self._stuck.add(key)
            raise
        self._real_bytes -= self._real.pop(key, 0)
        return 0
