"""Pages whose V lies below HBM, put together one layer at a time and read there.

    HBM    | K of page 0 | K of page 1 | page 2, being filled |
    DRAM   | V of page 0 | V of page 1 |
    scratch, of one layer:   | K V of page 0 | K V of page 1 | K V of page 2 |

Only pages that are read are put together: all of them, or those that sparse reads chose. What
attention gets is what it would read had V stayed, so results are equal bit for bit. On a GPU V
passes pinned host memory (`HostStage`): the host verifies and copies the next layer's V while the
GPU attends to this one.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from kvkernels.api import Scratch
from kvkernels.layout import PageSpec
from kvkernels.pages import UNIT, copy_plane, page_rows
from torch import Tensor

from workbench.cache.step_tables import ClassTables
from workbench.engine.host_stage import HostStage
from workbench.engine.read_traffic import ReadTraffic
from workbench.spatial.hierarchy.values import ValuesBelow

if TYPE_CHECKING:
    from workbench.engine.cache_stack import CacheStack


@dataclass(frozen=True)
class SplitPages:
    """Where the pages of one table lie: n of them once each, those without V first.

    spec: of one layer with both planes. offsets int64 [n] into the arena; blocks int64 [num_split],
    block ids of those whose V is below.
    """

    spec: PageSpec
    offsets: np.ndarray
    blocks: np.ndarray


class SplitReads:
    """Puts pages of both kinds together in `scratch`; one for an arena."""

    def __init__(self, stack: "CacheStack", values: ValuesBelow) -> None:
        self._pool, self._store, self._values = stack.pool, stack.store, values
        self._alone = {both: alone for alone, both in stack.manager.roles.joined.items()}
        self.scratch = Scratch(stack.store.device)
        self.stage = HostStage(stack.store.device)

    def covers(self, cls: int) -> bool:
        """Whether pages that are read as this class can have their V below."""
        return cls in self._alone

    def one_layer(self, tables: ClassTables) -> tuple[ClassTables, SplitPages]:
        """The tables with offsets into the scratch of one layer."""
        pool = self._pool
        chosen = tables.page_offsets
        if isinstance(chosen, Tensor):  # the host has to know whose V to fetch
            chosen = chosen.cpu().numpy()
        there = chosen >= 0
        offsets, place = np.unique(chosen[there], return_inverse=True)
        slabs = offsets // pool.slab_bytes
        split = pool.slab_class[slabs] != tables.cls
        alone, both = pool.classes[self._alone[tables.cls]], pool.classes[tables.cls]
        blocks = slabs * pool.stride + offsets % pool.slab_bytes // alone.page_bytes
        order = np.argsort(~split, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        moved = np.full(chosen.shape, -1, np.int64)
        moved[there] = rank[place] * both.layer_bytes
        pages = SplitPages(both.one_layer, offsets[order], blocks[order][: int(split.sum())])
        return replace(tables, page_offsets=moved), pages

    def read(self, pages: SplitPages, layer: int, traffic: ReadTraffic) -> Tensor:
        """One layer of the pages with K and V, uint8 [n * layer_bytes]; valid until the next."""
        both = pages.spec
        alone, below = both.part("k"), both.part("v")
        count, num_split = len(pages.offsets), len(pages.blocks)
        out = self.scratch.get("pages", (count, both.layer_bytes), torch.uint8)
        if num_split < count:
            out[num_split:] = self._layer(pages.offsets[num_split:], both, layer)
        if num_split:
            keys = self._layer(pages.offsets[:num_split], alone, layer)
            copy_plane(keys, alone, "k", out[:num_split], both)
            values = self.stage.take(num_split, below.layer_bytes)
            self._values.read(pages.blocks, layer, values)
            copy_plane(self.stage.send(values), below, "v", out[:num_split], both)
            traffic.fetched_bytes += num_split * below.layer_bytes
        return out.view(-1)

    def _layer(self, offsets: np.ndarray, spec: PageSpec, layer: int) -> Tensor:
        """Copies of one layer of pages in the arena, uint8 [n, layer_bytes]."""
        rows = page_rows(self._store.arena, spec.layer_bytes)
        at = torch.from_numpy((offsets + layer * spec.layer_bytes) // UNIT)
        return rows.index_select(0, at.to(rows.device)).view(torch.uint8)


@dataclass(frozen=True)
class SplitPlan:
    """A step's plan for pages of which some have their V below: one to write by, one to read by."""

    writes: object
    reads: object
    pages: SplitPages
    source: SplitReads

    def read(self, layer: int, traffic: ReadTraffic) -> Tensor:
        """What `reads` is a plan of: one layer of the pages."""
        return self.source.read(self.pages, layer, traffic)
