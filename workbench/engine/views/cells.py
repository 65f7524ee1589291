"""The cells of the grid: one a block or tier entry, as u8 planes (see `workbench/snapshot.py`)."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.cache.block_pool import UNASSIGNED, BlockPool
from workbench.cache.keys import PrivateKey, TierKey
from workbench.snapshot import (
    FLAG_EVICTED,
    FLAG_HASHED,
    FLAG_MOVING,
    FLAG_PINNED,
    FLAG_SHARED,
    NO_OWNER,
    STATE_CACHED,
    STATE_FREE,
    STATE_OWNED,
)
from workbench.spatial.hierarchy.pins import Hold

EVICTED_STEPS = 4  # how long a just evicted block is marked
MOVED_STEPS = 4  # how long a block that came up from a tier is marked
MOST_CELLS = 65_536
HOLD_FLAGS = {
    Hold.NONE: 0,
    Hold.SOFT: FLAG_PINNED,
    Hold.HARD: FLAG_PINNED,
    Hold.BUSY: FLAG_PINNED | FLAG_MOVING,
}

Planes = dict[str, np.ndarray]


@dataclass(frozen=True)
class HbmCells:
    """G1 in address order. `ids[cell]` is the block id; unassigned slabs show free cells."""

    slabs: list[list[int]]
    ids: np.ndarray
    first: np.ndarray  # [num_slabs] first cell of each slab
    planes: Planes


def hbm_cells(pool: BlockPool, shown_class: int) -> HbmCells:
    """Cells of every slab; `shown_class` is how unassigned slabs are drawn."""
    per_class = np.array([pool.pages_per_slab(cls) for cls in range(len(pool.classes))])
    drawn = np.where(pool.slab_class == UNASSIGNED, shown_class, pool.slab_class)
    counts = per_class[drawn]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    within = np.arange(int(counts.sum())) - np.repeat(first, counts)
    ids = np.repeat(np.arange(pool.num_slabs) * pool.stride, counts) + within
    refs, cached = pool.ref_cnt[ids], pool.cached[ids]
    state = np.where(refs > 0, STATE_OWNED, np.where(cached, STATE_CACHED, STATE_FREE))
    state = state.astype(np.uint8)
    state |= np.where(refs > 1, FLAG_SHARED, 0).astype(np.uint8)
    state |= np.where(pool.pins[ids] > 0, FLAG_PINNED, 0).astype(np.uint8)
    state |= np.where(cached, FLAG_HASHED, 0).astype(np.uint8)
    recent = pool.step - pool.evicted_step[ids] < EVICTED_STEPS
    state |= np.where(recent & ~cached, FLAG_EVICTED, 0).astype(np.uint8)
    moved = pool.step - pool.moved_step[ids] < MOVED_STEPS
    state |= np.where(moved & (refs > 0), FLAG_MOVING, 0).astype(np.uint8)
    planes = {
        "state": state,
        "owner": pool.owner[ids],
        "refs": np.minimum(refs, 255).astype(np.uint8),
        "mass": scaled_mass(np.where(refs > 0, pool.mass[ids], 0.0)),
        "age": scaled_age(pool.step - pool.last_used[ids]),
    }
    slabs = np.stack([drawn, counts], axis=1).tolist()
    return HbmCells(slabs, ids, first, planes)


def scaled_mass(mass: np.ndarray) -> np.ndarray:
    """0..255 by the square root of the share of the largest, so that small masses show."""
    top = float(mass.max(initial=0.0))
    if top <= 0:
        return np.zeros(len(mass), np.uint8)
    scaled: np.ndarray = (255 * np.sqrt(mass / top)).astype(np.uint8)
    return scaled


def scaled_age(steps: np.ndarray) -> np.ndarray:
    """0..255 as 16 log2(1 + steps)."""
    aged: np.ndarray = np.minimum(16 * np.log2(1.0 + np.maximum(steps, 0)), 255).astype(np.uint8)
    return aged


@dataclass(frozen=True)
class EntryLook:
    """What is drawn of an entry besides its state: its owner's slot and its page class.

    `page_class` is -1 where nothing was noted of the entry.
    """

    owner: int = NO_OWNER
    page_class: int = -1


class TierCells:
    """Cells of a lower tier: an entry keeps its cell until it is gone."""

    def __init__(self) -> None:
        self.keys: list[TierKey | None] = []
        self.classes: list[list[int]] = []  # [page class, number of cells] in order
        self.evictable_bytes = 0  # of entries that nothing pins and any request may read
        self._cell_of: dict[TierKey, int] = {}
        self._free: list[int] = []
        self._drawn: tuple[int, ...] = ()
        self._looks: dict[TierKey, EntryLook] = {}
        self._world = (-1, 0)
        self._planes: Planes = {}

    def update(
        self,
        version: int,
        rows: list[tuple[TierKey, int, Hold, int]],
        num_free: int,
        free_class: int,
        look: Callable[[TierKey], EntryLook],
        world: tuple[int, int],
    ) -> tuple[int, Planes]:
        """(number of cells, planes); `rows` as `Hierarchy.entries` gives them.

        `num_free`: entries of `free_class`, the present one, for which there is room. `look` is
        asked once an entry while `world` stays the same.
        """
        drawn = (version, num_free, free_class, *world)
        if drawn != self._drawn:
            if world != self._world:
                self._looks.clear()
                self._world = world
            self._drawn = drawn
            self._place(rows)
            for key, *_ in rows:
                if key not in self._looks:
                    self._looks[key] = look(key)
            self._draw(rows, max(len(rows) + num_free, len(self.keys)), free_class)
        return len(self._planes["state"]), self._planes

    def _place(self, rows: list[tuple[TierKey, int, Hold, int]]) -> None:
        present = {row[0] for row in rows}
        for key in [key for key in self._cell_of if key not in present]:
            cell = self._cell_of.pop(key)
            self._looks.pop(key, None)
            self.keys[cell] = None
            heapq.heappush(self._free, cell)
        for key, *_ in rows:
            if key not in self._cell_of:
                if self._free:
                    cell = heapq.heappop(self._free)
                    self.keys[cell] = key
                else:
                    cell = len(self.keys)
                    self.keys.append(key)
                self._cell_of[key] = cell

    def _draw(
        self,
        rows: list[tuple[TierKey, int, Hold, int]],
        count: int,
        free_class: int,
    ) -> None:
        count = min(count, MOST_CELLS)
        classes = np.full(count, free_class)
        planes: Planes = {
            name: np.zeros(count, np.uint8) for name in ("state", "owner", "refs", "mass", "age")
        }
        planes["owner"][:] = NO_OWNER
        self.evictable_bytes = 0
        for rank, (key, num_bytes, hold, _) in enumerate(rows):
            if hold <= Hold.SOFT and not isinstance(key, PrivateKey):
                self.evictable_bytes += num_bytes
            cell = self._cell_of[key]
            if cell >= count:
                continue
            private = isinstance(key, PrivateKey)
            state = STATE_OWNED if private else STATE_CACHED | FLAG_HASHED
            planes["state"][cell] = state | HOLD_FLAGS[hold]
            seen = self._looks[key]
            planes["owner"][cell], classes[cell] = seen.owner, seen.page_class
            planes["age"][cell] = 255 - 255 * rank // len(rows)  # by rank: next to go is oldest
        self._planes = planes
        starts = np.flatnonzero(np.diff(classes, prepend=classes[:1] - 1))
        lengths = np.diff(starts, append=count)
        self.classes = np.stack([classes[starts], lengths], axis=1).tolist()
