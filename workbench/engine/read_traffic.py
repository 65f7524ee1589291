"""Bytes that attention of a step reads from pages, counted where the tables are made."""

from dataclasses import dataclass


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

    def add(self, num_read: int, num_skipped: int, layer_bytes: int) -> None:
        """Pages of one layer of one class, each read by one token."""
        self.pages_read += num_read
        self.pages_skipped += num_skipped
        self.read_bytes += num_read * layer_bytes

    def add_whole(self, num_read: int, layer_bytes: int) -> None:
        """Pages of one layer that are read whole."""
        self.add(num_read, 0, layer_bytes)
        self.whole_bytes += num_read * layer_bytes

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one generated token reads, in a step of a single request."""
        apart = self.read_bytes - self.whole_bytes + self.bounds_bytes
        return self.whole_bytes + apart / max(1, self.num_rows)
