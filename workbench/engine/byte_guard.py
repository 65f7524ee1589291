"""Proof that hashed blocks are immutable: a checksum of each row, taken when it became visible."""

from typing import TYPE_CHECKING

import xxhash

from workbench.cache.prefix_index import Row
from workbench.errors import IntegrityError

if TYPE_CHECKING:
    from workbench.engine.cache_stack import CacheStack


class ByteGuard:
    """Finds late writes (I3, I7): bytes of a hashed row that changed after it was published.

    Reads every hashed byte at each check: for tests and `workbench check`, not for serving.
    """

    def __init__(self) -> None:
        self._sums: dict[Row, int] = {}

    def record(self, stack: "CacheStack") -> None:
        """Remember rows that are new, forget those that are gone; call it after each step."""
        known = self._sums
        self._sums = {
            row: known[row] if row in known else _checksum(stack, row)
            for row in stack.pool.index.rows()
        }

    def verify(self, stack: "CacheStack") -> None:
        """Raise IntegrityError naming a block whose bytes are not those that were published."""
        for row in stack.pool.index.rows():
            if row in self._sums and self._sums[row] != _checksum(stack, row):
                raise IntegrityError(
                    f"I3: the bytes of hashed block {row.blocks[0]} changed after it was published"
                )


def _checksum(stack: "CacheStack", row: Row) -> int:
    return xxhash.xxh3_64_intdigest(stack.store.read_row(stack.manager.parts(row.blocks)).data)
