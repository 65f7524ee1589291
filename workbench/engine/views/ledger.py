"""The memory ledger: what the engine claims, line by line, against the process's RSS."""

from typing import TYPE_CHECKING

import psutil

from workbench.views import LedgerLine

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


def ledger(engine: "Engine") -> tuple[list[LedgerLine], int]:
    """(lines, rss_bytes). The arena is counted whole; its unused part may not be resident yet."""
    stack, pool = engine.stack, engine.stack.pool
    lines = [
        LedgerLine(
            name="weights",
            num_bytes=engine.model.decoder.weight_bytes,
            detail=engine.model.decoder.weight_format,
        )
    ]
    waste = 0
    for cls, spec in enumerate(pool.classes):
        num_slabs = int((pool.slab_class == cls).sum())
        if num_slabs:
            pages = num_slabs * pool.pages_per_slab(cls)
            waste += num_slabs * pool.slab_bytes - pages * spec.page_bytes
            lines.append(
                LedgerLine(
                    name=f"kv:{spec.label}",
                    num_bytes=pages * (spec.page_bytes - spec.metadata_bytes),
                    detail=f"{pages} pages",
                )
            )
            lines.append(
                LedgerLine(
                    name="metadata",
                    num_bytes=pages * spec.metadata_bytes,
                    detail=f"scales of {spec.label}",
                )
            )
    tables = stack.runner.rope_table or ()
    split = stack.runner.split.scratch_bytes if stack.runner.split is not None else 0
    rotations = sum(table.nbytes for table in tables)
    unassigned = pool.num_unassigned_slabs * pool.slab_bytes
    lines += [
        LedgerLine(name="unassigned_slabs", num_bytes=unassigned),
        LedgerLine(name="slab_waste", num_bytes=waste),
        LedgerLine(name="scratch", num_bytes=stack.store.scratch.bytes + split),
        LedgerLine(
            name="page_bounds",
            num_bytes=stack.runner.bounds.num_bytes if stack.runner.bounds else 0,
            detail="least and largest, or mean, key channels of pages",
        ),
        LedgerLine(name="query_statistics", num_bytes=engine.retainer.queries.num_bytes),
        LedgerLine(name="codec_tables", num_bytes=engine.hierarchy.codec_bytes),
        LedgerLine(name="calibration", num_bytes=stack.store.calibration_bytes + rotations),
        LedgerLine(name="shadow", num_bytes=engine.shadow.num_bytes if engine.shadow else 0),
        LedgerLine(
            name="dram_tier",
            num_bytes=engine.hierarchy.stats().host_allocated_bytes,
            detail="pages, staging and spare",
        ),
    ]
    rss = int(psutil.Process().memory_info().rss)
    claimed = sum(line.num_bytes for line in lines)
    lines.append(LedgerLine(name="other", num_bytes=rss - claimed, detail="RSS minus the above"))
    return lines, rss
