"""The prefix index: row key -> one block a group, visible only when complete."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from workbench.cache.keys import PrefixKey

REMEMBERED_EVICTIONS = 65536


@dataclass(slots=True, eq=False)
class Row:
    """One full block of tokens: `blocks[g]` holds group g's part; all or nothing is visible.

    `lineage` is the numerics tag of its bytes: `int8`, or `int8<bf16` after a recode.
    """

    key: PrefixKey
    parent_key: PrefixKey | None
    blocks: tuple[int, ...]
    token_ids: tuple[int, ...]
    lineage: str
    chain_key: PrefixKey


class PrefixIndex:
    """Bijection between keys and rows; remembers what was evicted, to explain misses."""

    def __init__(self, on_stored: Callable[[Row], None], on_removed: Callable[[Row], None]) -> None:
        self._rows: dict[PrefixKey, Row] = {}
        self._children: Counter[PrefixKey] = Counter()  # rows that name a key as their parent
        self._evicted_at: OrderedDict[PrefixKey, int] = OrderedDict()
        self._on_stored = on_stored
        self._on_removed = on_removed

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: PrefixKey) -> Row | None:
        """The row of a key, if it is in HBM."""
        return self._rows.get(key)

    def num_children(self, row: Row) -> int:
        """Rows in HBM that continue this one."""
        return self._children[row.key]

    def depth(self, row: Row) -> int:
        """Rows in HBM that lie before this one without a gap."""
        count = 0
        parent = self._rows.get(row.parent_key) if row.parent_key else None
        while parent is not None:
            count += 1
            parent = self._rows.get(parent.parent_key) if parent.parent_key else None
        return count

    def _disown(self, row: Row) -> None:
        if row.parent_key is not None:
            self._children[row.parent_key] -= 1
            if not self._children[row.parent_key]:
                del self._children[row.parent_key]

    def rows(self) -> list[Row]:
        """All rows, oldest insertion first."""
        return list(self._rows.values())

    def insert(self, row: Row) -> None:
        """Make a complete row visible; its key must be new."""
        if row.key in self._rows:
            raise ValueError(f"key {row.key.hex()[:12]} is in the index already")
        self._rows[row.key] = row
        if row.parent_key is not None:
            self._children[row.parent_key] += 1
        self._evicted_at.pop(row.key, None)
        self._on_stored(row)

    def remove(self, row: Row, step: int) -> None:
        """Hide a row before any of its blocks can be written again."""
        if self._rows.pop(row.key, None) is not row:
            raise ValueError(f"row {row.key.hex()[:12]} is not the one in the index")
        self._disown(row)
        self._evicted_at[row.key] = step
        if len(self._evicted_at) > REMEMBERED_EVICTIONS:
            self._evicted_at.popitem(last=False)
        self._on_removed(row)

    def clear(self) -> None:
        """Hide every row at once (a rebuild or recode); the caller announces it."""
        self._rows.clear()
        self._children.clear()

    def evicted_at(self, key: PrefixKey) -> int | None:
        """Step at which a key was last evicted from HBM, if remembered."""
        return self._evicted_at.get(key)
