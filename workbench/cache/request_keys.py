"""Keys of a request's full blocks, and the lineages under which they may be found."""

from collections.abc import Callable

from workbench.cache.keys import PrefixKey, next_key, tagged_key
from workbench.cache.prefix_index import Row, Text
from workbench.request import Request


class RequestKeys:
    """Hashes requests block by block; `format_label` tags the bytes that are computed now.

    `root_key(request)` gives the key of the empty prefix (identity and tenant salt).
    """

    def __init__(
        self, root_key: Callable[[Request], PrefixKey], block_size: int, format_label: str
    ) -> None:
        self.format_label = format_label
        self.reuse_recoded = True  # whether rows tagged `new<old` may be hit
        self._recoded: dict[str, None] = {}
        self._root_key = root_key
        self._block_size = block_size

    @property
    def lineages(self) -> list[str]:
        """Numerics tags that may be hit now, the pure one first."""
        return [self.format_label] + (list(self._recoded) if self.reuse_recoded else [])

    @property
    def resident_lineages(self) -> list[str]:
        """Numerics tags that rows can have, whether they may be hit or not."""
        return [self.format_label, *self._recoded]

    def remember_lineage(self, lineage: str) -> None:
        """Rows with this tag exist after a recode."""
        self._recoded[lineage] = None

    def begin_format(self, format_label: str) -> None:
        """A recode begins: no row is of the new format yet, and none will be of the old one."""
        self.format_label = format_label
        self._recoded.clear()

    def chain(self, request: Request) -> list[PrefixKey]:
        """Chain keys of the request's full blocks, extended as tokens were added."""
        size = self._block_size
        keys = request.chain_keys
        parent = keys[-1] if keys else self._root_key(request)
        for start in range(len(keys) * size, request.num_tokens - size + 1, size):
            parent = next_key(parent, request.token_ids[start : start + size])
            keys.append(parent)
        return keys

    def text(self, request: Request) -> Text:
        """What an index looks for."""
        return Text(
            request.token_ids,
            self._block_size,
            lambda: self._root_key(request),
            lambda: self.chain(request),
        )

    def link_key(self, request: Request, lineage: str) -> PrefixKey:
        """Key of what a request's first block continues."""
        return tagged_key(self._root_key(request), lineage)

    def row_keys(self, request: Request, lineage: str) -> list[PrefixKey]:
        """Keys of the request's full blocks under a lineage."""
        return [tagged_key(key, lineage) for key in self.chain(request)]

    def row(self, request: Request, page: int, blocks: tuple[int, ...], lineage: str) -> Row:
        """The row of one full block of tokens whose parts lie in `blocks`, one a group."""
        chain, size = self.chain(request), self._block_size
        return Row(
            key=tagged_key(chain[page], lineage),
            parent_key=tagged_key(chain[page - 1], lineage) if page else None,
            blocks=blocks,
            token_ids=tuple(request.token_ids[page * size : (page + 1) * size]),
            lineage=lineage,
            chain_key=chain[page],
            root_key=b"" if page else self._root_key(request),
            page=page,
        )
