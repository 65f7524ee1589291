"""Which pages belong together: all groups' pages of one token block, for groups `layer` and `head`.

With one page a layer and head, a token block is layers x heads pages. Viewers draw one square for
it, filled by the share that is kept, until somebody opens it.
"""

from typing import TYPE_CHECKING

import numpy as np

from workbench.cache.request_blocks import RequestBlocks
from workbench.engine.views.cells import HbmCells
from workbench.engine.views.request_views import shown
from workbench.snapshot import GroupsView, TokenBlocks

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


class _Gathering:
    """Token blocks found so far: of each block id its token block and group, of each its number."""

    def __init__(self, num_blocks: int) -> None:
        self.of_block = np.full(num_blocks, -1, np.int32)
        self.group = np.zeros(num_blocks, np.int32)
        self.numbers: list[np.ndarray] = []
        self.count = 0

    def add(self, numbers: np.ndarray) -> int:
        """Make room for token blocks of these numbers; returns the index of the first."""
        first = self.count
        self.numbers.append(numbers.astype(np.int32))
        self.count += len(numbers)
        return first


def token_blocks(engine: "Engine", hbm: HbmCells) -> tuple[GroupsView, TokenBlocks] | None:
    """How the pages of G1 belong together; None where one group holds all layers and heads.

    A row of the prefix index is one token block. A page of a request that is in no row belongs to
    the token block in which its first slot lies; so a page whose tokens were compacted is drawn
    where it begins. Whatever else is in use (reserved pages) follows in squares of its own.
    """
    pool, manager = engine.stack.pool, engine.stack.manager
    num_groups = len(manager.classes)
    if num_groups == 1:
        return None
    found = _Gathering(len(pool.ref_cnt))
    rows = list(pool.index.rows())
    if rows:
        blocks = np.array([row.blocks for row in rows])  # [rows, groups]
        first = found.add(np.full(len(rows), -1))
        found.of_block[blocks] = first + np.arange(len(rows), dtype=np.int32)[:, None]
        found.group[blocks] = np.arange(num_groups, dtype=np.int32)
    tables = [np.zeros(0, np.int32)]
    counts = []
    for request in shown(engine):
        held = manager.requests.get(request.request_id)
        table = np.zeros(0, np.int32) if held is None else _of_request(found, held)
        tables.append(table)
        counts.append(len(table))
    ids = hbm.ids
    rest = ids[(found.of_block[ids] < 0) & (hbm.planes["state"] & 7 > 0)]
    first = found.add(np.full(-(-len(rest) // num_groups), -1))
    found.of_block[rest] = first + np.arange(len(rest), dtype=np.int32) // num_groups
    found.group[rest] = np.arange(len(rest)) % num_groups
    unit = found.of_block[ids]
    view = GroupsView(
        rows=[_layers(layer_set.layers) for layer_set in engine.stack.geometry.layer_sets],
        num_columns=num_groups // len(engine.stack.geometry.layer_sets),
        num_token_blocks=found.count,
        counts=counts,
    )
    parts = np.where(unit >= 0, unit * num_groups + found.group[ids], -1).astype(np.int32)
    numbers = np.concatenate([np.zeros(0, np.int32), *found.numbers])
    return view, TokenBlocks(parts, numbers, np.concatenate(tables))


def _of_request(found: _Gathering, blocks: RequestBlocks) -> np.ndarray:
    """Token blocks of one request in order, adding those that are in no row yet, int32."""
    longest = int(blocks.num_pages.max(initial=0))
    is_page = np.arange(longest) < blocks.num_pages[:, None]  # [groups, pages]
    ids = blocks.table[:, :longest][is_page]
    size = blocks.block_size
    numbers = (blocks.pos[:, : longest * size : size] // size)[is_page]
    unit = found.of_block[ids]
    new = unit < 0
    fresh = np.unique(numbers[new])
    first = found.add(fresh)
    unit[new] = first + np.searchsorted(fresh, numbers[new])
    found.of_block[ids[new]] = unit[new]
    found.group[ids] = np.nonzero(is_page)[0]
    all_numbers = np.concatenate(found.numbers)
    all_numbers[unit] = numbers
    found.numbers = [all_numbers]
    order = np.unique(np.stack([numbers, unit], axis=1), axis=0)
    table: np.ndarray = order[:, 1].astype(np.int32)
    return table


def _layers(layers: tuple[int, ...]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
