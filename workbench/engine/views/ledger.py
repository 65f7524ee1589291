"""The memory ledger: what the engine claims, line by line, beside the process's RSS.

A line counts what is resident; what is reserved and was never written is told apart, so that claims
and RSS are two figures that can disagree.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np
import psutil
from torch import Tensor

from workbench.cache.block_pool import BlockPool
from workbench.engine.views.resident import Resident
from workbench.views import LedgerLine

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

Place = Literal["process", "device", "reserved"]


def ledger(engine: "Engine") -> tuple[list[LedgerLine], int]:
    """(lines, rss_bytes); lines of place `process` are what the RSS should hold."""
    stack, decoder = engine.stack, engine.model.decoder
    lines = _Lines("device" if engine.device == "cuda" else "process")
    lines.add("weights", decoder.weight_bytes, decoder.weight_format)
    _add_arena(lines, stack.pool, stack.store.arena)
    bounds, split = stack.runner.bounds, stack.runner.split
    scratch = [stack.store.scratch, *([split.scratch] if split is not None else [])]
    lines.add_buffers("scratch", [each for part in scratch for each in part.buffers])
    lines.add_buffers(
        "page_bounds",
        [] if bounds is None else bounds.buffers,
        "least and largest, or mean, key channels of pages",
    )
    lines.add("query_statistics", engine.retainer.queries.num_bytes, place="process")
    lines.add("codec_tables", engine.hierarchy.codec_bytes, place="process")
    rotations = sum(table.nbytes for table in stack.runner.rope_table or ())
    lines.add("calibration", stack.store.calibration_bytes + rotations)
    shadow = engine.shadow
    lines.add_buffers("shadow", [] if shadow is None else [shadow._runner.store.arena])
    stats, stage = engine.hierarchy.stats(), 0 if split is None else split.stage.num_bytes
    held = stats.host_allocated_bytes - stats.host_unwritten_bytes
    lines.add("dram_tier", held, "pages, staging and spare", place="process")
    lines.add("dram_tier", stats.host_unwritten_bytes, place="reserved")
    lines.add("staging", stage, "on their way to the device", place="process")
    return lines.lines, int(psutil.Process().memory_info().rss)


def slab_waste_bytes(pool: BlockPool) -> int:
    """Bytes at the ends of assigned slabs that no page fits in."""
    used = [spec.page_bytes * pool.pages_per_slab(cls) for cls, spec in enumerate(pool.classes)]
    counts = [int((pool.slab_class == cls).sum()) for cls in range(len(used))]
    return sum(n * (pool.slab_bytes - part) for n, part in zip(counts, used, strict=True))


class _Lines:
    """The ledger while it is made; `place` is where the model and its cache lie."""

    def __init__(self, place: Place) -> None:
        self.lines: list[LedgerLine] = []
        self._place: Place = place

    def add(self, name: str, num_bytes: int, detail: str = "", place: Place | None = None) -> None:
        """One line; a reserved one only where there is something."""
        where = place or self._place
        if num_bytes or where != "reserved":
            told = f"reserved:{name}" if where == "reserved" else name
            line = LedgerLine(name=told, num_bytes=num_bytes, detail=detail, place=where)
            self.lines.append(line)

    def add_buffers(self, name: str, buffers: Iterable[Tensor], detail: str = "") -> None:
        """The resident bytes of some buffers as one line, and the rest as reserved."""
        found = [Resident(buffer) for buffer in buffers]
        resident = sum(each.total for each in found)
        self.add(name, resident, detail)
        self.add(name, sum(each.num_bytes for each in found) - resident, place="reserved")


def _add_arena(lines: _Lines, pool: BlockPool, arena: Tensor) -> None:
    """The arena by what its slabs are for; an unassigned slab may have been written before."""
    memory = Resident(arena)
    starts = np.arange(pool.num_slabs, dtype=np.int64) * pool.slab_bytes
    claimed = waste = 0
    for cls, spec in enumerate(pool.classes):
        mine = starts[pool.slab_class == cls]
        if not len(mine):
            continue
        pages = pool.pages_per_slab(cls)
        ends = mine + pages * spec.page_bytes
        resident = memory.between(mine, ends)
        waste += memory.between(ends, mine + pool.slab_bytes)
        scales = resident * spec.metadata_bytes // spec.page_bytes
        lines.add(f"kv:{spec.label}", resident - scales, f"of {pages * len(mine)} pages")
        lines.add("metadata", scales, f"scales of {spec.label}")
        claimed += resident
    free = starts[pool.slab_class < 0]
    unassigned = memory.between(free, free + pool.slab_bytes)
    lines.add("unassigned_slabs", unassigned, "written before, free now")
    lines.add("slab_waste", waste)
    lines.add("arena", memory.num_bytes - claimed - unassigned - waste, place="reserved")
