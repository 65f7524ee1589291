"""`workbench bench tiers`: what the slower tiers reach of their media, and what they are worth."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from workbench.lab import (
    disk_tier_bench,
    fault_run,
    media_bench,
    object_split_bench,
    overlap_bench,
    placement_bench,
    prestage_bench,
    restart_bench,
    retrieval_bench,
    write_policy_bench,
)
from workbench.lab.cost_model_bench import measure_cost_model
from workbench.lab.disk_tier_bench import DiskPlan, measure_disk
from workbench.lab.fault_run import FaultPlan, measure_faults
from workbench.lab.figures import Figure
from workbench.lab.host_copy_bench import measure_copies
from workbench.lab.media_bench import MediaPlan, measure_media
from workbench.lab.object_split_bench import SplitPlan, measure_split
from workbench.lab.overlap_bench import OverlapPlan, measure_overlap
from workbench.lab.placement_bench import PlacementPlan, measure_placement
from workbench.lab.prestage_bench import PrestagePlan, measure_prestage
from workbench.lab.restart_bench import RestartPlan, measure_restart
from workbench.lab.retrieval_bench import RetrievalPlan, measure_retrieval
from workbench.lab.trace_replay import measure_trace, without_trace
from workbench.lab.transport_bench import measure_transports
from workbench.lab.write_policy_bench import WritePlan, measure_writes

Progress = Callable[[str], None]


def measure(
    progress: Progress,
    *,
    quick: bool = False,
    file_mib: int = 512,
    path: str = "",
    trace: Path | None = None,
) -> list[Figure]:
    """Host copies; the cost of every tier; the disk, with `file_mib` of a file in `path` or a
    private folder; hits in a new process; prestaging; placement policies; pages left out by
    attention mass; transfers under faults; and a Mooncake trace, where one is given, against its
    published rates."""
    plan = disk_tier_bench.QUICK if quick else DiskPlan(file_mib=file_mib, path=path)
    figures = [*measure_copies(progress, quick=quick), *measure_disk(progress, plan)]
    figures += measure_cost_model(progress)
    media = media_bench.QUICK if quick else MediaPlan()
    figures += [*measure_media(progress, media), *measure_transports(progress, media)]
    figures += measure_writes(progress, write_policy_bench.QUICK if quick else WritePlan())
    figures += measure_restart(progress, restart_bench.QUICK if quick else RestartPlan())
    figures += measure_prestage(progress, prestage_bench.QUICK if quick else PrestagePlan())
    figures += measure_split(progress, object_split_bench.QUICK if quick else SplitPlan())
    figures += measure_overlap(progress, overlap_bench.QUICK if quick else OverlapPlan())
    figures += measure_placement(progress, placement_bench.QUICK if quick else PlacementPlan())
    figures += measure_retrieval(progress, retrieval_bench.QUICK if quick else RetrievalPlan())
    with tempfile.TemporaryDirectory(prefix="kv-workbench-faults-") as folder:
        sizes = fault_run.QUICK if quick else FaultPlan()
        figures += measure_faults(progress, Path(folder), sizes)
    return figures + (
        without_trace(quick=quick) if trace is None else measure_trace(progress, trace, quick=quick)
    )
