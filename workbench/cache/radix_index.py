"""The `radix` index: a tree whose edges are runs of tokens, as in SGLang's RadixAttention.

Texts that begin alike share a node until they part; there its edge is split. An edge is a run of
whole blocks, because a page is the least that can be shared; within the block where texts part,
the common tokens are a partial hit.

    root -- [system prompt: 12 blocks] -+- [question one: 3 blocks]
                                        +- [question two: 2 blocks] -- ...

Nodes are filed under the key of the row that they continue, whether or not that row is cached: what
lies behind a row that was evicted is out of reach, and is found again when the row comes back.
"""

from collections.abc import Callable, Sequence

from workbench.cache.keys import PrefixKey, tagged_key
from workbench.cache.prefix_index import Row, RowTable, Text
from workbench.cache.siblings import Siblings, common_prefix


class _Node:
    """An edge of the tree: rows one after another; only the last may have several followers."""

    __slots__ = ("rows", "tokens")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.tokens = [token for row in rows for token in row.token_ids]

    def append(self, row: Row) -> None:
        """The edge becomes longer by a block."""
        self.rows.append(row)
        self.tokens.extend(row.token_ids)

    def cut(self, count: int) -> list[Row]:
        """Keep the first `count` rows; returns the others."""
        rest = self.rows[count:]
        self.rows = self.rows[:count]
        self.tokens = self.tokens[: sum(len(row.token_ids) for row in self.rows)]
        return rest


class RadixIndex(RowTable):
    """Finds a prefix by walking tokens, without hashing; leaves are evicted first (SGLang)."""

    name = "radix"
    leaves_first = True

    def __init__(self, on_stored: Callable[[Row], None], on_removed: Callable[[Row], None]) -> None:
        super().__init__(on_stored, on_removed)
        self._node: dict[PrefixKey, _Node] = {}  # of each row
        self._edges: dict[PrefixKey, Siblings[_Node]] = {}  # by the key of what they continue

    @property
    def num_nodes(self) -> int:
        """Edges of the tree."""
        return sum(map(len, self._edges.values()))

    def match(self, text: Text, lineage: str, most: int) -> list[Row]:
        """Rows of the text's longest cached prefix under a lineage, at most `most` of them."""
        size, tokens = text.block_size, text.token_ids
        rows: list[Row] = []
        key = tagged_key(text.root(), lineage)
        while len(rows) < most and (edges := self._edges.get(key)):
            at = len(rows) * size
            node = edges.get(tuple(tokens[at : at + size]))
            if node is None:
                break
            count = self._matching(node, tokens[at : at + len(node.tokens)], size)
            rows += node.rows[:count]
            if count < len(node.rows):
                break
            key = node.rows[-1].key
        return rows[:most]

    def _matching(self, node: _Node, tokens: Sequence[int], size: int) -> int:
        """Leading rows of a node that `tokens` begins with."""
        if tokens == node.tokens:
            return len(node.rows)
        return common_prefix(node.tokens, tokens) // size

    def closest(self, after: PrefixKey, token_ids: Sequence[int]) -> tuple[Row, int] | None:
        """Of the rows that continue `after`, the one with most leading tokens in common."""
        node = self._node.get(after)
        if node is not None and node.rows[-1].key != after:
            row = node.rows[self._place(node, after) + 1]
            common = common_prefix(row.token_ids, token_ids)
            return (row, common) if common else None
        edges = self._edges.get(after)
        found = None if edges is None else edges.closest(tuple(token_ids))
        return None if found is None else (found[0].rows[0], found[1])

    def num_children(self, row: Row) -> int:
        """Rows in HBM that continue this one."""
        if self._node[row.key].rows[-1] is not row:
            return 1
        return len(self._edges.get(row.key, ()))

    def fault(self) -> str:
        """What does not hold in its own structure, or an empty text."""
        seen = 0
        for key, edges in self._edges.items():
            for block, node in edges.items():
                first = node.rows[0]
                if first.link_key != key or first.token_ids != block:
                    return f"radix: the node of row {first.key.hex()[:12]} is filed wrongly"
                if not self._is_run(node):
                    return f"radix: the rows behind {first.key.hex()[:12]} are not a run of text"
                seen += len(node.rows)
        if not seen == len(self._rows) == len(self._node):
            return f"radix: the tree has {seen} rows of {len(self._rows)}"
        return ""

    def _is_run(self, node: _Node) -> bool:
        rows = node.rows
        return (
            all(self._node.get(row.key) is node for row in rows)
            and all(b.parent_key == a.key for a, b in zip(rows, rows[1:], strict=False))
            and all(row.key not in self._edges for row in rows[:-1])
            and node.tokens == [token for row in rows for token in row.token_ids]
        )

    # ---- changes

    def _link(self, row: Row) -> None:
        """Lengthen the edge that the row continues, or let a new one begin behind it."""
        parent = self._node.get(row.parent_key) if row.parent_key else None
        if parent is not None and parent.rows[-1].key == row.parent_key:
            if row.parent_key not in self._edges:
                parent.append(row)
                self._node[row.key] = parent
                return
        elif parent is not None and row.parent_key is not None:  # texts part inside this edge
            self._file(parent.cut(self._place(parent, row.parent_key) + 1))
        self._file([row])

    def _unlink(self, row: Row) -> None:
        """Take a row out; what lies behind it stays filed under its key."""
        node = self._node.pop(row.key)
        place = self._place(node, row.key)
        behind = node.cut(place)[1:]
        if behind:
            self._file(behind)
        if not node.rows:
            edges = self._edges[row.link_key]
            edges.drop(row.token_ids)
            if not len(edges):
                del self._edges[row.link_key]

    def _file(self, rows: list[Row]) -> None:
        """A node of its own for a run of rows."""
        node = _Node(rows)
        self._edges.setdefault(rows[0].link_key, Siblings()).add(rows[0].token_ids, node)
        for row in rows:
            self._node[row.key] = node

    def _place(self, node: _Node, key: PrefixKey) -> int:
        """Where a row stands in its edge; the last ones are asked for most."""
        return next(at for at in range(len(node.rows) - 1, -1, -1) if node.rows[at].key == key)

    def _forget_links(self) -> None:
        self._node.clear()
        self._edges.clear()
