"""What a medium has asked of what it lies on: I/Os of a disk, requests of object storage."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class IoTotals:
    """Reads and writes until now, and their bytes."""

    num_reads: int = 0
    num_writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def since(self, before: "IoTotals") -> "IoTotals":
        """What came after `before`."""
        return IoTotals(
            self.num_reads - before.num_reads,
            self.num_writes - before.num_writes,
            self.read_bytes - before.read_bytes,
            self.written_bytes - before.written_bytes,
        )


@dataclass(slots=True)
class IoCounts:
    """What a medium counts as it goes; its tier's thread only, others read `totals`."""

    num_reads: int = 0
    num_writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def count(self, num_bytes: int, write: bool) -> None:
        """Count one I/O."""
        if write:
            self.num_writes += 1
            self.written_bytes += num_bytes
        else:
            self.num_reads += 1
            self.read_bytes += num_bytes

    @property
    def num_ios(self) -> int:
        """Reads and writes."""
        return self.num_reads + self.num_writes

    @property
    def totals(self) -> IoTotals:
        """The counts as they are now."""
        return IoTotals(self.num_reads, self.num_writes, self.read_bytes, self.written_bytes)


@runtime_checkable
class CountsIos(Protocol):
    """A medium that counts."""

    @property
    def counts(self) -> IoCounts:
        """I/Os and bytes since opening."""


def totals_of(medium: object) -> IoTotals | None:
    """The counts of a medium; None where it has none."""
    return medium.counts.totals if isinstance(medium, CountsIos) else None
