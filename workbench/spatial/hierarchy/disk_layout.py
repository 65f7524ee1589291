"""Where the layers of a page go on the file.

    block_first   | header, layer 0, layer 1, ... | header, layer 0, ...      a page is one I/O
    layer_first   | region of layer 0         | region of layer 1         | ...
                    h a0 h b0 h c0              a1 b1 c1              one layer of many pages is

A page laid layer first takes an I/O a layer alone, and neighbours' slices of a layer lie side by
side. Blocks are 4096 bytes: one that two layers share lies with the first of them. Each region is a
wish: where it is full the next free blocks serve, so that no byte is lost by either layout.
Source: FlexKV's BLOCKFIRST and LAYERFIRST, SGLang HiCache's page_first_direct and layer_first.
"""

from itertools import pairwise

from workbench.spatial.hierarchy.aligned import ALIGN
from workbench.spatial.hierarchy.disk_record import max_runs, page_blocks
from workbench.spatial.hierarchy.extents import Extents, Run
from workbench.spatial.hierarchy.medium import PageRecord


def place(
    free: Extents, record: PageRecord, end_blocks: int, layout: str = "block_first"
) -> list[Run] | None:
    """Take the blocks of a page, its header's first; None, and nothing taken, without room."""
    most = max_runs(record)
    if most <= 0:
        return None
    if layout == "layer_first" and not record.codec:
        parts = layer_blocks(record)
        found = _by_layer(free, parts, end_blocks, most) if len(parts) > 1 else None
        if found is not None:
            return found
    return free.take(page_blocks(record), most)


def layer_blocks(record: PageRecord) -> list[int]:
    """Blocks of each part of a page: the header with the first layer, then a layer a part.

    Layers smaller than a block share one.
    """
    num_layers, total = len(record.checksums), page_blocks(record) - 1
    begins = [layer * record.payload_bytes // num_layers // ALIGN for layer in range(num_layers)]
    parts = [end - begin for begin, end in pairwise([*begins, total])]
    parts[0] += 1
    return [count for count in parts if count]


def _by_layer(free: Extents, parts: list[int], end_blocks: int, most_runs: int) -> list[Run] | None:
    """A run a part, each from its region on; None, and nothing taken, where one has no room."""
    total, before = sum(parts), 0
    runs: list[Run] = []
    for count in parts:
        start = free.take_near(count, end_blocks * before // total)
        if start is None:
            break
        if runs and sum(runs[-1]) == start:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((start, count))
        before += count
    if before == total and len(runs) <= most_runs:
        return runs
    for run in runs:
        free.add(*run)
    return None
