"""`workbench bench tiers`: what the slower tiers reach of what their media can do."""

from collections.abc import Callable

from workbench.lab.disk_tier_bench import QUICK, DiskPlan, measure_disk
from workbench.lab.figures import Figure
from workbench.lab.host_copy_bench import measure_copies

Progress = Callable[[str], None]


def measure(
    progress: Progress, *, quick: bool = False, file_mib: int = 512, path: str = ""
) -> list[Figure]:
    """Host copies, then the disk: `file_mib` of a file in `path`, or in a private folder."""
    plan = QUICK if quick else DiskPlan(file_mib=file_mib, path=path)
    return [*measure_copies(progress, quick=quick), *measure_disk(progress, plan)]
