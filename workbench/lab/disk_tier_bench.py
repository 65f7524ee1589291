"""The disk's share of `workbench bench tiers`: the tier's file over the disk's own plain speed."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np

from workbench.cache.page_copy import slice_checksums
from workbench.errors import RequestError, WorkbenchError
from workbench.lab.bench_runs import median
from workbench.lab.figures import Figure
from workbench.lab.host_copy_bench import NUM_SLICES, PAGE_BYTES, in_turns, verdict
from workbench.settings.tiers import DISK_LAYOUTS
from workbench.spatial.hierarchy.aligned import ALIGN, aligned_empty
from workbench.spatial.hierarchy.direct_io import DiskWays
from workbench.spatial.hierarchy.disk_file import DiskFile
from workbench.spatial.hierarchy.host_memory import HostMemory
from workbench.spatial.hierarchy.medium import Done, Get, PageRecord, Put

Progress = Callable[[str], None]
BATCH = 64  # pages a call: what the staging of disk transfers holds
PLAIN_BYTES = 8 << 20  # bytes of a plain read or write
ASKED = 0.8
WAYS = {"": DiskWays(), "_one_call": DiskWays(ring=False, coalesce=False)}


@dataclass(frozen=True)
class DiskPlan:
    """Sizes: the file, the rounds of whole passes over it, and pages of the layouts' part."""

    file_mib: int = 512
    num_rounds: int = 11
    layout_pages: int = 128
    layout_rounds: int = 7
    path: str = ""  # a folder on the disk to measure; empty: a private one

    def __post_init__(self) -> None:
        if not 16 <= self.file_mib <= 65_536:
            raise RequestError(f"--file-mib {self.file_mib}: give 16 to 65536")


QUICK = DiskPlan(file_mib=16, num_rounds=2, layout_pages=4, layout_rounds=1)


def measure_disk(progress: Progress, plan: DiskPlan) -> list[Figure]:
    """All figures of the disk; TierError where its file cannot be opened."""
    figures = _shares(progress, plan)
    for layout in DISK_LAYOUTS:
        figures += _layout(layout, plan)
        progress(f"disk: {layout.replace('_', ' ')} is measured")
    return figures


# ---- the tier's file against plain reads and writes of it


class _Passes:
    """Whole passes over one file: the tier's puts and gets, and plain ones of the same blocks."""

    def __init__(self, disk: DiskFile) -> None:
        self.disk = disk
        memory = HostMemory(2 * BATCH * PAGE_BYTES)  # where the tiers' pages lie
        distinct = [_random_page(seed, memory.take(PAGE_BYTES)) for seed in range(BATCH)]
        charge = PAGE_BYTES + ALIGN
        self.puts = [
            _put(number.to_bytes(32, "little"), distinct[number % BATCH], NUM_SLICES)
            for number in range(disk.usable_bytes // charge)
        ]
        self.outs = [memory.take(PAGE_BYTES) for _ in range(BATCH)]
        self.plain = aligned_empty(PLAIN_BYTES)
        self.plain[:] = np.resize(distinct[0], PLAIN_BYTES)
        self.num_plain = len(self.puts) * charge // PLAIN_BYTES

    @property
    def page_bytes(self) -> int:
        """Payload of a pass of the tier."""
        return len(self.puts) * PAGE_BYTES

    def put(self) -> None:
        """Put every page, into the blocks of the pass before."""
        self.disk.remove([put.record.key for put in self.puts])
        for first in range(0, len(self.puts), BATCH):
            succeed(self.disk.put(self.puts[first : first + BATCH]))

    def get(self) -> None:
        """Get every page."""
        for first in range(0, len(self.puts), BATCH):
            batch = self.puts[first : first + BATCH]
            succeed(
                self.disk.get([_get(put, out) for put, out in zip(batch, self.outs, strict=False)])
            )

    def verify(self) -> None:
        """Read every page and compare its checksums; a bench of wrong bytes is none."""
        for put in self.puts:
            out = self.outs[0]
            succeed(self.disk.get([_get(put, out)]))
            if slice_checksums(out, NUM_SLICES) != put.record.checksums:
                raise WorkbenchError("the disk tier read wrong bytes: do not trust this disk")

    def plain_read(self, file: int) -> None:
        """Read the same blocks from front to back, 8 MiB a call."""
        self._plain(lambda view, at: os.preadv(file, [view], at))

    def plain_write(self, file: int) -> None:
        """Write over the same blocks from front to back, 8 MiB a call."""
        self._plain(lambda view, at: os.pwritev(file, [view], at))

    def _plain(self, call: Callable[[memoryview, int], int]) -> None:
        first = min(self.disk.runs_of(put.record.key)[0][0] for put in self.puts) * ALIGN
        view = memoryview(self.plain)  # type: ignore[arg-type]
        for number in range(self.num_plain):
            if call(view, first + number * PLAIN_BYTES) != PLAIN_BYTES:
                raise WorkbenchError("the disk moved less than it was asked to: is it full?")


def _shares(progress: Progress, plan: DiskPlan) -> list[Figure]:
    with _opened(plan.path, plan.file_mib << 20) as disk, _plain_file(disk) as file:
        passes = _Passes(disk)
        before = disk.counts.num_writes
        passes.put()  # the first write of a preallocated file is dearer, and no part of the figures
        write_ios = disk.counts.num_writes - before
        passes.verify()
        seconds = in_turns(
            {
                "write": passes.put,
                "read": passes.get,
                "plain_read": lambda: passes.plain_read(file),
                "plain_write": lambda: passes.plain_write(file),
            },
            plan.num_rounds,
        )
        passes.put()
        passes.verify()
        progress(f"disk: {plan.num_rounds} rounds over {plan.file_mib} MiB, {disk.way}")
        num_pages = len(passes.puts)
        plain_bytes = passes.num_plain * PLAIN_BYTES
        figures = []
        for name in ("read", "write"):
            rate = passes.page_bytes / median(seconds[name]) / 1e6
            plain = plain_bytes / median(seconds[f"plain_{name}"]) / 1e6
            note = (
                f"{verdict(rate / plain, ASKED)}; {num_pages} pages of {PAGE_BYTES:,} bytes, "
                f"{BATCH} a call, {disk.way}: {rate:,.0f} MB/s; plain calls of "
                f"{PLAIN_BYTES >> 20} MiB {plain:,.0f} MB/s; medians of {plan.num_rounds} rounds "
                "in turns"
            )
            figures.append(Figure(name=f"disk_{name}_share", value=rate / plain, note=note))
        return [
            *figures,
            Figure(
                name="disk_write_ios_per_page",
                value=write_ios / num_pages,
                note=f"{write_ios} I/Os, of the table too: neighbours are gathered up to 1 MiB",
            ),
        ]


# ---- layouts


def _layout(layout: str, plan: DiskPlan) -> list[Figure]:
    """Reads of whole pages in random order and of single layers: I/Os, and how fast they are."""
    payloads = [_random_page(number, aligned_empty(PAGE_BYTES)) for number in range(BATCH)]
    puts = [
        _put(number.to_bytes(32, "little"), payloads[number % BATCH], NUM_SLICES)
        for number in range(plan.layout_pages)
    ]
    need = (ALIGN + PAGE_BYTES) * len(puts)
    room = need + need // 16 + (1 << 20)
    with (
        _opened(plan.path, room, replace(WAYS[""], layout=layout)) as ring,
        _folder_beside(plan.path) as beside,
        _opened(beside, room, replace(WAYS["_one_call"], layout=layout)) as single,
    ):
        what = {
            "": f"whole pages in random order, {BATCH} a call, {ring.way}",
            "_one_call": f"the same, {single.way}, one system call an I/O",
            "_by_layer": f"one layer of {BATCH} pages after the other, {ring.way}",
        }
        reads = _Reads(puts)
        for disk in (ring, single):
            for first in range(0, len(puts), BATCH):
                succeed(disk.put(puts[first : first + BATCH]))
        alone = reads.ios(ring, [[put] for put in puts]) / len(puts)
        layer = reads.ios(ring, [puts[:BATCH]], layer=NUM_SLICES // 2)
        seconds = in_turns(
            {
                "": partial(reads.pages, ring),
                "_one_call": partial(reads.pages, single),
                "_by_layer": partial(reads.layers, ring),
            },
            plan.layout_rounds,
        )
    rates = {name: len(puts) * PAGE_BYTES / median(each) / 1e6 for name, each in seconds.items()}
    return [
        Figure(
            name=f"disk_ios_per_page_{layout}",
            value=alone,
            note=f"of a whole page alone: {NUM_SLICES} layers, {PAGE_BYTES:,} bytes",
        ),
        Figure(
            name=f"disk_ios_per_layer_{layout}",
            value=layer,
            note=f"of one layer of {min(BATCH, len(puts))} neighbouring pages together",
        ),
        *(
            Figure(
                name=f"disk_read_{layout}{name}_mb_s",
                value=rate,
                unit="MB/s",
                note=f"{len(puts)} pages: {what[name]}",
            )
            for name, rate in rates.items()
        ),
        Figure(
            name=f"disk_ring_gain_{layout}",
            value=rates[""] / rates["_one_call"],
            note="io_uring at depth 32 over one system call at a time",
        ),
    ]


class _Reads:
    """The reads of one set of pages, in batches."""

    def __init__(self, puts: list[Put]) -> None:
        self._puts = puts
        self._outs = aligned_empty(PAGE_BYTES * BATCH).reshape(BATCH, NUM_SLICES, -1)
        order = random.Random(0).sample(puts, len(puts))
        self._random = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]

    def pages(self, disk: DiskFile) -> None:
        """Every page once, whole."""
        for batch in self._random:
            self._read(disk, batch)

    def layers(self, disk: DiskFile) -> None:
        """Every page once, layer by layer."""
        for first in range(0, len(self._puts), BATCH):
            for layer in range(NUM_SLICES):
                self._read(disk, self._puts[first : first + BATCH], layer)

    def ios(self, disk: DiskFile, batches: list[list[Put]], layer: int | None = None) -> int:
        """I/Os of some batches."""
        before = disk.counts.num_reads
        for batch in batches:
            self._read(disk, batch, layer)
        return disk.counts.num_reads - before

    def _read(self, disk: DiskFile, batch: list[Put], layer: int | None = None) -> None:
        gets = []
        for put, out in zip(batch, self._outs, strict=False):
            offset = 0 if layer is None else layer * out.shape[1]
            gets.append(Get(put.record, offset, (out if layer is None else out[layer]).reshape(-1)))
        succeed(disk.get(gets))


def succeed(done: list[Done]) -> None:
    """Raise WorkbenchError if an operation failed: its time would mean nothing."""
    reasons = {each.reason for each in done if each.reason}
    if reasons:
        raise WorkbenchError(f"the disk tier failed while it was measured ({', '.join(reasons)})")


def _random_page(seed: int, page: np.ndarray) -> np.ndarray:
    page[:] = np.random.default_rng(seed).integers(0, 256, PAGE_BYTES, dtype=np.uint8)
    return page


def _put(name: bytes, payload: np.ndarray, num_slices: int = 1) -> Put:
    sums = slice_checksums(payload, num_slices)
    return Put(PageRecord(b"P" + name, payload.nbytes, sums, payload.nbytes), payload)


def _get(put: Put, out: np.ndarray) -> Get:
    return Get(put.record, 0, out)


@contextmanager
def _opened(path: str, capacity_bytes: int, ways: DiskWays | None = None) -> Iterator[DiskFile]:
    disk = DiskFile(path, capacity_bytes, ways=ways)
    try:
        yield disk
    finally:
        disk.close(keep=False)


@contextmanager
def _folder_beside(path: str) -> Iterator[str]:
    """Another folder on the same disk, for a second file: a tier locks its own."""
    if not path:
        yield ""
        return
    with TemporaryDirectory(dir=path) as folder:
        yield folder


@contextmanager
def _plain_file(disk: DiskFile) -> Iterator[int]:
    """The same file once more, opened the way the tier has it."""
    direct = os.O_DIRECT if "O_DIRECT" in disk.way else 0
    file = os.open(disk.place, os.O_RDWR | os.O_CLOEXEC | direct)
    try:
        yield file
    finally:
        os.close(file)
