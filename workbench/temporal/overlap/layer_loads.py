"""Loads by layers: a prefix moves up slice by slice while the layers above it are computed.

    tier     | slice 0 | slice 1 | slice 2 |
    compute            | layers of 0 | layers of 1 | layers of 2 |

A request is admitted at once; each layer waits for its own slice alone (SGLang HiCache and KVBM's
`intra`). Nothing is published before the step has ended, and a slice that is missing or damaged
takes the step back (architecture, decision 6).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.cache.keys import TierKey
from workbench.cache.page_store import PageStore
from workbench.cache.row_slices import Part, RowSlices
from workbench.cache.tier import KVHierarchy, SliceSpan
from workbench.request import Request
from workbench.temporal.scheduling.loads import Found, PendingLoad

MOST_S = 20.0  # a slice may take so long, then the step is taken back


@dataclass(frozen=True)
class LayerTimeline:
    """One step that loaded by layers; times in seconds from the submission of the first load.

    `loads`: when slices moved. `waits`, `computes`: (first layer of the slice, start, end): what
    the step stood still for, copies into pages included, and what it computed meanwhile.
    """

    request_ids: tuple[str, ...]
    layers: int  # of a slice
    loads: tuple[SliceSpan, ...]
    waits: tuple[tuple[int, float, float], ...]
    computes: tuple[tuple[int, float, float], ...]


@dataclass
class LayerLoad:
    """Pages of one request on their way into its blocks: `parts` of the rows they go to."""

    request: Request
    found: Found
    pending: PendingLoad
    parts: list[list[Part]]
    failed: bool = False
    late: bool = False  # it failed for want of time
    wait_s: float = 0.0
    tiers: tuple[str, ...] = ()


@dataclass
class LayerLoads:
    """What comes up during one step; the engine's thread only."""

    store: PageStore
    hierarchy: KVHierarchy
    slices: RowSlices
    now_s: Callable[[], float]
    on: bool = False  # the setting
    last: LayerTimeline | None = None
    most_s: float = MOST_S
    _expected: dict[str, Found] = field(default_factory=dict)  # by request, before it is admitted
    _loads: list[LayerLoad] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)  # requests
    _num_done: int = 0  # slices that are in the blocks
    _waits: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def num_slices(self) -> int:
        """Slices of a row whose layers are alike."""
        return self.slices.num_layers // self.slices.layers

    def takes(self, request: Request, keys: Sequence[TierKey]) -> bool:
        """Whether these keys can come by layers, and shall; after a failure they come whole."""
        several = self.on and self.num_slices > 1 and request.request_id not in self._failed
        return several and self.hierarchy.by_slices.possible(keys, self.num_slices)

    def expect(self, found: Found) -> None:
        """A load has begun; its request is admitted next, or given up."""
        assert found.coming is not None
        self._expected[found.coming.request.request_id] = found

    def expected(self, request: Request) -> Found | None:
        """What comes for a request that is not admitted yet."""
        return self._expected.get(request.request_id)

    def give_up(self, request: Request) -> PendingLoad | None:
        """The request is not part of this step; what has begun goes on as a load like any other."""
        found = self._expected.pop(request.request_id, None)
        return found.coming if found is not None else None

    def begin(self, request: Request, parts: list[list[Part]]) -> None:
        """The request is part of this step; `parts` of the rows that its pages go to."""
        found = self._expected.pop(request.request_id)
        assert found.coming is not None
        places = [self.store.place(each) for each in parts]
        direct = [place for place in places if place is not None]
        self.hierarchy.by_slices.begin(
            found.coming.job_id, direct if len(direct) == len(parts) else []
        )
        self._loads.append(LayerLoad(request, found, found.coming, parts))

    def arrive(self, layer: int) -> None:
        """Bring this layer of all pages into their blocks; called before the layer reads them."""
        while self._loads and self._num_done * self.slices.layers <= layer:
            self._bring(self._num_done)
            self._num_done += 1

    def finish(self) -> list[LayerLoad]:
        """The step has ended: its loads, of which those that failed take it back."""
        if not self._loads:
            return []
        ended_s = self.now_s()
        self.arrive(self.slices.num_layers - 1)  # where a step computed nothing
        self.last = self._timeline(ended_s)
        for load in self._loads:
            load.tiers, _ = self.hierarchy.by_slices.progress(load.pending.job_id)
            self.hierarchy.complete_load(load.pending.job_id)
        self._failed |= {load.request.request_id for load in self._loads if load.failed}
        loads, self._loads, self._waits, self._num_done = self._loads, [], [], 0
        return loads

    def forget(self, request: Request) -> None:
        """A request is over, perhaps in a step that broke off."""
        self._failed.discard(request.request_id)
        for load in [load for load in self._loads if load.request is request]:
            self._loads.remove(load)
            self.hierarchy.complete_load(load.pending.job_id)

    def _bring(self, number: int) -> None:
        begun_s = self.now_s()
        for load in self._loads:
            waited_s = self.now_s()
            if not load.failed:
                load.failed = not self._copy(load, number)
            load.wait_s += self.now_s() - waited_s
        self.store.settle()
        self._waits.append((number * self.slices.layers, begun_s, self.now_s()))

    def _copy(self, load: LayerLoad, number: int) -> bool:
        """Whether one slice of all pages came whole, and lies in their blocks now."""
        load.late = not self.hierarchy.by_slices.wait(load.pending.job_id, number + 1, self.most_s)
        if load.late:
            return False

        def write(page: int, piece: np.ndarray) -> None:
            self.store.write_pieces(self.slices.places(load.parts[page], number), piece)

        return self.hierarchy.by_slices.copy(load.pending.job_id, number, write)

    def _timeline(self, ended_s: float) -> LayerTimeline:
        begun_s = min(load.pending.start_s for load in self._loads)
        spans: list[SliceSpan] = []
        for load in self._loads:
            spans += self.hierarchy.by_slices.progress(load.pending.job_id)[1]
        starts = np.array([wait[1] for wait in self._waits[1:]] + [ended_s]) - begun_s
        waits = [(layer, start - begun_s, end - begun_s) for layer, start, end in self._waits]
        return LayerTimeline(
            tuple(load.request.request_id for load in self._loads),
            self.slices.layers,
            tuple(
                SliceSpan(span.tier, span.number, span.start_s - begun_s, span.end_s - begun_s)
                for span in spans
            ),
            tuple(waits),
            tuple((wait[0], wait[2], float(to)) for wait, to in zip(waits, starts, strict=True)),
        )
