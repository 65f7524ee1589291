"""Part of `workbench bench tiers`: optional transports beside the direct way of the same medium.

Printed only where NIXL is installed. Each round runs both ways, one after the other.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from workbench.lab.bench_runs import median
from workbench.lab.figures import Figure
from workbench.lab.host_copy_bench import PAGE_BYTES
from workbench.lab.media_bench import MediaPlan, Passes, own_bucket
from workbench.spatial.hierarchy.direct_io import DiskWays
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.medium import Medium
from workbench.spatial.hierarchy.nixl_agent import PACKAGES
from workbench.spatial.hierarchy.object_store import ObjectStore
from workbench.spatial.hierarchy.shared_store import SharedStoreClient

Progress = Callable[[str], None]
Both = tuple[Medium, Medium]  # the direct way, and the transport
WHAT = ("write", "read", "layer_read")


def measure_transports(progress: Progress, plan: MediaPlan) -> list[Figure]:
    """Bandwidth of NIXL's plug-ins as a share of the direct way's; nothing without NIXL."""
    if not any(importlib.util.find_spec(name) for name in PACKAGES):
        return []
    capacity = 2 * plan.num_pages * (PAGE_BYTES + 8192) + (16 << 20)
    places = {"disk": _disks, "store": _stores}
    if importlib.util.find_spec("moto") is not None:
        places["objects"] = _objects
    figures = []
    for name, opened in places.items():
        with opened(capacity) as both:
            figures += _shares(progress, name, both, plan)
    return figures


def _shares(progress: Progress, name: str, both: Both, plan: MediaPlan) -> list[Figure]:
    passes = Passes(plan.num_pages)
    seconds: list[list[tuple[float, float, float]]] = [[], []]
    for round_number in range(plan.rounds + 1):
        for medium, times in zip(both, seconds, strict=True):
            taken = passes.seconds(medium)
            if round_number:  # the first pass is dearer: memory and files are new
                times.append(taken)
    for medium in both:
        passes.verify(medium)
    direct, other = ([median(list(each)) for each in zip(*times, strict=True)] for times in seconds)
    sizes = (PAGE_BYTES, PAGE_BYTES, passes.layer_bytes)
    figures = []
    for what, size, plain_s, other_s in zip(WHAT, sizes, direct, other, strict=True):
        total = plan.num_pages * size / 1e6
        note = (
            f"{both[1].way} {total / other_s:,.0f} MB/s, {both[0].way} {total / plain_s:,.0f}; "
            f"{plan.num_pages} ranges of {size:,} bytes, median of {plan.rounds}"
        )
        figures.append(
            Figure(name=f"transport_{name}_{what}_share", value=plain_s / other_s, note=note)
        )
        progress(f"{what} of {name}: {note}")
    return figures


@contextmanager
def _both(first: Callable[[], Medium], second: Callable[[], Medium]) -> Iterator[Both]:
    with ExitStack() as stack:
        media = []
        for make in (first, second):
            media.append(make())
            stack.callback(media[-1].close, False)
        yield media[0], media[1]


@contextmanager
def _disks(capacity: int) -> Iterator[Both]:
    def disk(transport: str) -> DiskFile:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kv-workbench-disk-"))
        return DiskFile(folder, capacity, ways=DiskWays(transport=transport))

    with ExitStack() as stack, _both(lambda: disk("direct"), lambda: disk("nixl")) as both:
        yield both


@contextmanager
def _stores(capacity: int) -> Iterator[Both]:
    def store(transport: str) -> SharedStoreClient:
        return SharedStoreClient("", capacity, transport=transport)

    with _both(lambda: store("direct"), lambda: store("nixl")) as both:
        yield both


@contextmanager
def _objects(capacity: int) -> Iterator[Both]:
    with own_bucket() as address:

        def objects(transport: str) -> ObjectStore:  # of one bucket, so each with a prefix
            return ObjectStore(f"{address}/{transport}", capacity, transport=transport)

        with _both(lambda: objects("direct"), lambda: objects("nixl")) as both:
            yield both
