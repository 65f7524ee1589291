"""Which full blocks can be found by their text: the protocol, what all indexes share, and `hash`.

A key leads to a *row*, one block a group, visible only when complete. Indexes differ in how a
text's longest cached prefix is found, and in what may be evicted first.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from workbench.cache.keys import PrefixKey, tagged_key
from workbench.cache.siblings import Siblings

REMEMBERED_EVICTIONS = 65536


@dataclass(slots=True, eq=False)
class Row:
    """One full block of tokens: `blocks[g]` holds group g's part; all or nothing is visible.

    `lineage` is the numerics tag of its bytes: `int8`, or `int8<bf16` after a recode. `root_key` is
    known of a text's first block only, which has no parent.
    """

    key: PrefixKey
    parent_key: PrefixKey | None
    blocks: tuple[int, ...]
    token_ids: tuple[int, ...]
    lineage: str
    chain_key: PrefixKey
    root_key: PrefixKey = b""
    page: int = 0  # which block of its text it is
    num_hits: int = 0  # by requests that found it in HBM

    @property
    def link_key(self) -> PrefixKey:
        """Key of what it continues: its parent, or the empty prefix of its tenant and lineage."""
        return self.parent_key or tagged_key(self.root_key, self.lineage)


@dataclass(frozen=True, slots=True)
class Text:
    """What is looked for: tokens, the key of the empty prefix before them, and their chain keys.

    Both `root()` and `chain()` hash: an index calls only what it needs.
    """

    token_ids: Sequence[int]
    block_size: int
    root: Callable[[], PrefixKey]
    chain: Callable[[], Sequence[PrefixKey]]


class PrefixIndex(Protocol):
    """Bijection between keys and rows; remembers what was evicted, to explain misses."""

    name: str  # the setting `cache.index` that chooses it
    leaves_first: bool  # whether a row may go only after those that continue it

    def __len__(self) -> int: ...

    def get(self, key: PrefixKey) -> Row | None:
        """The row of a key, if it is in HBM."""

    def match(self, text: Text, lineage: str, most: int) -> list[Row]:
        """Rows of the text's longest cached prefix under a lineage, at most `most` of them."""

    def closest(self, after: PrefixKey, token_ids: Sequence[int]) -> tuple[Row, int] | None:
        """Of the rows that continue `after`, the one with most leading tokens in common."""

    def num_children(self, row: Row) -> int:
        """Rows in HBM that continue this one."""

    def rows(self) -> list[Row]:
        """All rows, oldest insertion first."""

    def insert(self, row: Row) -> None:
        """Make a complete row visible; its key must be new."""

    def remove(self, row: Row, step: int) -> None:
        """Hide a row before any of its blocks can be written again."""

    def clear(self) -> None:
        """Hide every row at once (a rebuild or recode); the caller announces it."""

    def evicted_at(self, key: PrefixKey) -> int | None:
        """Step at which a key was last evicted from HBM, if remembered."""

    def take_over(self, other: "PrefixIndex") -> None:
        """Hold another index's rows and memory instead of it; nothing is announced."""

    def fault(self) -> str:
        """What does not hold in its own structure, or an empty text."""


class RowTable:
    """What every index has: key -> row, announcements, and the memory of evictions."""

    name = ""
    leaves_first = False

    def __init__(self, on_stored: Callable[[Row], None], on_removed: Callable[[Row], None]) -> None:
        self._rows: dict[PrefixKey, Row] = {}
        self._evicted_at: OrderedDict[PrefixKey, int] = OrderedDict()
        self._on_stored = on_stored
        self._on_removed = on_removed

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: PrefixKey) -> Row | None:
        """The row of a key, if it is in HBM."""
        return self._rows.get(key)

    def rows(self) -> list[Row]:
        """All rows, oldest insertion first."""
        return list(self._rows.values())

    def insert(self, row: Row) -> None:
        """Make a complete row visible; its key must be new."""
        if row.key in self._rows:
            raise ValueError(f"key {row.key.hex()[:12]} is in the index already")
        self._rows[row.key] = row
        self._link(row)
        self._evicted_at.pop(row.key, None)
        self._on_stored(row)

    def remove(self, row: Row, step: int) -> None:
        """Hide a row before any of its blocks can be written again."""
        if self._rows.get(row.key) is not row:
            raise ValueError(f"row {row.key.hex()[:12]} is not the one in the index")
        self._unlink(row)
        del self._rows[row.key]
        self._evicted_at[row.key] = step
        if len(self._evicted_at) > REMEMBERED_EVICTIONS:
            self._evicted_at.popitem(last=False)
        self._on_removed(row)

    def clear(self) -> None:
        """Hide every row at once (a rebuild or recode); the caller announces it."""
        self._rows.clear()
        self._forget_links()

    def evicted_at(self, key: PrefixKey) -> int | None:
        """Step at which a key was last evicted from HBM, if remembered."""
        return self._evicted_at.get(key)

    def take_over(self, other: PrefixIndex) -> None:
        """Hold another index's rows and memory instead of it; nothing is announced."""
        for row in other.rows():
            self._rows[row.key] = row
            self._link(row)
        if isinstance(other, RowTable):
            self._evicted_at = other._evicted_at

    def _link(self, row: Row) -> None:
        raise NotImplementedError

    def _unlink(self, row: Row) -> None:
        raise NotImplementedError

    def _forget_links(self) -> None:
        raise NotImplementedError


class HashIndex(RowTable):
    """Finds a prefix block by block under its chained SHA-256 keys (vLLM)."""

    name = "hash"

    def __init__(self, on_stored: Callable[[Row], None], on_removed: Callable[[Row], None]) -> None:
        super().__init__(on_stored, on_removed)
        self._children: dict[PrefixKey, Siblings[Row]] = {}  # by the key of what they continue

    def match(self, text: Text, lineage: str, most: int) -> list[Row]:
        """Rows of the text's longest cached prefix under a lineage, at most `most` of them."""
        rows: list[Row] = []
        for chain_key in text.chain()[:most]:
            row = self._rows.get(tagged_key(chain_key, lineage))
            if row is None:
                break
            rows.append(row)
        return rows

    def closest(self, after: PrefixKey, token_ids: Sequence[int]) -> tuple[Row, int] | None:
        """Of the rows that continue `after`, the one with most leading tokens in common."""
        siblings = self._children.get(after)
        return None if siblings is None else siblings.closest(tuple(token_ids))

    def num_children(self, row: Row) -> int:
        """Rows in HBM that continue this one."""
        return len(self._children.get(row.key, ()))

    def fault(self) -> str:
        """What does not hold in its own structure, or an empty text."""
        linked = sum(map(len, self._children.values()))
        if linked != len(self._rows):
            return f"the hash index links {linked} rows and holds {len(self._rows)}"
        return ""

    def _link(self, row: Row) -> None:
        self._children.setdefault(row.link_key, Siblings()).add(row.token_ids, row)

    def _unlink(self, row: Row) -> None:
        siblings = self._children[row.link_key]
        siblings.drop(row.token_ids)
        if not len(siblings):
            del self._children[row.link_key]

    def _forget_links(self) -> None:
        self._children.clear()
