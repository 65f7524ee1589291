"""The grids of the tiers below G1: their cells, and the page class of each entry as stored."""

from typing import TYPE_CHECKING

import numpy as np
from kvkernels.layout import PageSpec

from workbench.cache.keys import PrivateKey, TierKey
from workbench.engine.views.cells import EntryLook, Planes, TierCells
from workbench.engine.views.tier_notes import TierNotes
from workbench.snapshot import NO_OWNER, PLANES, TierGrid
from workbench.spatial.hierarchy.counters import TierStats
from workbench.spatial.hierarchy.mover import TIERS_BELOW

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


class TierGrids:
    """Keeps the cells of the tiers below from one frame to the next, and notes of their entries."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.cells = {name: TierCells() for name in TIERS_BELOW}
        self.notes = TierNotes(engine)
        self._more: list[PageSpec] = []  # classes of entries in lower tiers alone
        self._world = (-1, 0)  # version of the settings, and number of G1's classes

    @property
    def specs(self) -> list[PageSpec]:
        """Page classes by the cells' class index: G1's, then those of entries alone."""
        return [*self._engine.stack.pool.classes, *self._more]

    def grid(self, stats: TierStats) -> tuple[TierGrid, Planes]:
        """Layout and planes of one tier; nothing for one that is off."""
        engine = self._engine
        if not stats.on:
            empty = {name: np.zeros(0, np.uint8) for name in PLANES}
            return TierGrid(name=stats.name, num_cells=0, slab_bytes=0, slabs=[]), empty
        row_bytes = sum(spec.page_bytes for spec in engine.stack.specs.full)
        charge = engine.hierarchy.charge(stats.name, row_bytes, engine.fetcher.layers.num_slices)
        present = engine.stack.manager.classes[0]
        cells = self.cells[stats.name]
        count, planes = cells.update(
            engine.hierarchy.version(stats.name),
            engine.hierarchy.entries(stats.name),
            max(0, stats.capacity_bytes - stats.used_bytes) // charge,
            present,
            self._look,
            self._renewed_world(),
        )
        grid = TierGrid(
            name=stats.name,
            num_cells=count,
            slab_bytes=stats.capacity_bytes,
            slabs=[[present, count]],
            cell_classes=cells.classes,
        )
        return grid, planes

    def _look(self, key: TierKey) -> EntryLook:
        """How an entry of a lower tier is drawn."""
        note = self.notes.get(key)
        request = self._engine.requests.get(key.request_id) if isinstance(key, PrivateKey) else None
        return EntryLook(
            NO_OWNER if request is None else request.owner,
            -1 if note is None else self._class_index(note.spec),
        )

    def _class_index(self, spec: PageSpec) -> int:
        if spec not in self.specs:
            self._more.append(spec)
        return self.specs.index(spec)

    def _renewed_world(self) -> tuple[int, int]:
        """Changes when the classes of G1 may have; those of entries alone are numbered anew."""
        world = self._engine.config_version, len(self._engine.stack.pool.classes)
        if world != self._world:
            self._world = world
            self._more.clear()
        return world
