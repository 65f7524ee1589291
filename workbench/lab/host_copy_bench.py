"""The host's share of `workbench bench tiers`: pages copied, and verified on the way, by memcpy."""

import ctypes
from collections.abc import Callable, Mapping

import numpy as np

from workbench.clock import RealClock
from workbench.lab.bench_runs import median, rotated
from workbench.lab.figures import Figure
from workbench.spatial.hierarchy.aligned import address, aligned_empty
from workbench.spatial.hierarchy.entries import slice_checksums
from workbench.spatial.hierarchy.page_copy import copy_verified

PAGE_BYTES, NUM_SLICES = 368_640, 30  # 16 tokens of the default model in bf16; a slice a layer
ASKED, ASKED_VERIFIED = 0.8, 0.65


def verdict(value: float, asked: float) -> str:
    """Whether a figure is what was asked of it."""
    return f"asked at least {asked:g}: {'met' if value >= asked else 'MISSED'}"


def measure_copies(progress: Callable[[str], None], *, quick: bool) -> list[Figure]:
    """Copies of many pages, page by page, over one memcpy of the same bytes, in turns."""
    num_pages, num_rounds = (16, 3) if quick else (256, 25)
    source = aligned_empty(num_pages * PAGE_BYTES)
    source[:] = np.random.default_rng(0).integers(0, 256, source.nbytes, dtype=np.uint8)
    pages = list(source.reshape(num_pages, PAGE_BYTES))
    sums = [slice_checksums(page, NUM_SLICES) for page in pages]
    whole = aligned_empty(source.nbytes)
    outs = [aligned_empty(PAGE_BYTES) for _ in pages]
    bad: list[int] = []

    def memcpy() -> None:
        ctypes.memmove(address(whole), address(source), source.nbytes)

    def copy() -> None:
        for page, out in zip(pages, outs, strict=True):
            out[:] = page

    def verify() -> None:
        for page, out, checksums in zip(pages, outs, sums, strict=True):
            bad.extend(copy_verified(page, out, checksums))

    runs = {"memcpy": memcpy, "copy": copy, "verified": verify}
    seconds = in_turns(runs, num_rounds)
    if bad:
        raise RuntimeError(f"{len(bad)} slices were copied wrongly")
    progress(f"host copies: {num_rounds} rounds of {source.nbytes / 2**20:.0f} MiB")
    rates = {name: source.nbytes / median(each) / 1e6 for name, each in seconds.items()}
    shared = f"{num_pages} pages of {PAGE_BYTES:,} bytes, one thread, {num_rounds} rounds in turns"
    figures = [
        Figure(name="host_memcpy_mb_s", value=rates["memcpy"], unit="MB/s",
               note=f"one memcpy of all the bytes; {shared}")
    ]  # fmt: skip
    for name, run, asked, what in (
        ("host_copy_share", "copy", ASKED, "page by page"),
        ("host_copy_share_verified", "verified", ASKED_VERIFIED,
         f"page by page, xxh3 of {NUM_SLICES} slices while they are in cache"),
    ):  # fmt: skip
        share = rates[run] / rates["memcpy"]
        note = f"{verdict(share, asked)}; {what}: {rates[run]:,.0f} MB/s"
        figures.append(Figure(name=name, value=share, note=note))
    return figures


def in_turns(runs: Mapping[str, Callable[[], None]], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round; who goes first changes from round to round."""
    clock = RealClock()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # touches memory and warms caches
    for number in range(num_rounds):
        for name in rotated(list(runs), number):
            start_s = clock.now_s()
            runs[name]()
            seconds[name].append(clock.now_s() - start_s)
    return seconds
