"""Bytes that attention of a step reads from pages, counted where the tables are made."""

from dataclasses import dataclass, field
from typing import SupportsInt


@dataclass
class ReadTraffic:
    """What attention of a step read; a page counts once a layer.

    The skipped ones are what whole reads would have read besides; `bounds_bytes` were read to
    choose. `whole_bytes`: of pages that the tokens of a request read together; the others were read
    once for each of `num_rows` tokens that read sparsely. `fetched_bytes`: of V that came from
    DRAM, once a layer however many tokens read it.
    """

    pages_read: int = 0
    pages_skipped: int = 0
    read_bytes: int = 0
    whole_bytes: int = 0
    bounds_bytes: int = 0
    fetched_bytes: int = 0
    num_rows: int = 0
    _later: list[tuple[SupportsInt, int]] = field(default_factory=list)

    def add(self, num_read: int, num_skipped: int, layer_bytes: int) -> None:
        """Pages of one layer of one class, each read by one token."""
        self.pages_read += num_read
        self.pages_skipped += num_skipped
        self.read_bytes += num_read * layer_bytes

    def add_later(self, num_read: SupportsInt, layer_bytes: int) -> None:
        """Pages that a kernel chose: how many is asked for at the end of the step."""
        self._later.append((num_read, layer_bytes))

    def settle(self) -> None:
        """Count what came later."""
        for num_read, layer_bytes in self._later:
            self.add(int(num_read), 0, layer_bytes)
        self._later.clear()

    def add_whole(self, num_read: int, layer_bytes: int) -> None:
        """Pages of one layer that are read whole."""
        self.add(num_read, 0, layer_bytes)
        self.whole_bytes += num_read * layer_bytes

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one generated token reads, in a step of a single request."""
        apart = self.read_bytes - self.whole_bytes + self.bounds_bytes
        return self.whole_bytes + apart / max(1, self.num_rows)
