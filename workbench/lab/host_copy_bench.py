"""The host's share of `workbench bench tiers`: pages copied, stored and loaded, over memcpy.

copied    page by page
stored    as HBM -> DRAM: each page's slices are hashed while its copy is in cache
loaded    as DRAM -> HBM: a job is delivered, then each page is written into its place by a
          copy that hashes its slices while they are in cache, and compares them
"""

import ctypes
from collections.abc import Callable, Mapping

import numpy as np

from workbench.cache.geometry import build_geometry
from workbench.cache.page_copy import copy_hashed
from workbench.cache.page_store import PageStore
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.lab.bench_runs import median, rotated
from workbench.lab.figures import Figure
from workbench.spatial.hierarchy.aligned import address, aligned_empty
from workbench.spatial.hierarchy.hierarchy import Hierarchy

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
    whole = aligned_empty(source.nbytes)
    outs = [aligned_empty(PAGE_BYTES) for _ in pages]
    path = LoadPath(pages)

    def memcpy() -> None:
        ctypes.memmove(address(whole), address(source), source.nbytes)

    def copy() -> None:
        for page, out in zip(pages, outs, strict=True):
            out[:] = page

    def store() -> None:
        for page, out in zip(pages, outs, strict=True):
            copy_hashed(page, out, NUM_SLICES)

    runs = {"memcpy": memcpy, "copy": copy, "stored": store, "loaded": path.load}
    seconds = in_turns(runs, num_rounds)
    path.close()
    progress(f"host copies: {num_rounds} rounds of {source.nbytes / 2**20:.0f} MiB")
    rates = {name: source.nbytes / median(each) / 1e6 for name, each in seconds.items()}
    shared = f"{num_pages} pages of {PAGE_BYTES:,} bytes, one thread, {num_rounds} rounds in turns"
    figures = [
        Figure(name="host_memcpy_mb_s", value=rates["memcpy"], unit="MB/s",
               note=f"one memcpy of all the bytes; {shared}")
    ]  # fmt: skip
    for name, run, asked, what in (
        ("host_copy_share", "copy", ASKED, "page by page"),
        ("host_copy_share_stored", "stored", ASKED_VERIFIED,
         f"as a store into DRAM, xxh3 of {NUM_SLICES} slices while they are in cache"),
        ("host_copy_share_verified", "loaded", ASKED_VERIFIED,
         f"as a load from DRAM into HBM, xxh3 of {NUM_SLICES} slices while they are in cache"),
    ):  # fmt: skip
        share = rates[run] / rates["memcpy"]
        note = f"{verdict(share, asked)}; {what}: {rates[run]:,.0f} MB/s"
        figures.append(Figure(name=name, value=share, note=note))
    return figures


class LoadPath:
    """Pages in a hierarchy's DRAM, and an arena that they are loaded into as the engine does it."""

    def __init__(self, pages: list[np.ndarray]) -> None:
        geometry = build_geometry("model", num_layers=NUM_SLICES, num_kv_heads=3, head_dim=64)
        self._spec = geometry.groups[0].page_spec(16, 64, "bf16", "bf16")
        self._store = PageStore(len(pages) * PAGE_BYTES, "cpu")
        mib = len(pages) * PAGE_BYTES / 2**20 + 1
        self._hierarchy = Hierarchy(
            TierSettings(dram_mib=mib), PAGE_BYTES, RealClock(), lambda kind, data: None
        )
        self._keys = [number.to_bytes(32, "big") for number in range(len(pages))]
        for key, page in zip(self._keys, pages, strict=True):
            self._hierarchy.store(key, page, NUM_SLICES)

    def load(self) -> None:
        """One job of all pages, each into its place; RuntimeError if one does not come."""
        job_id = self._hierarchy.submit_load(self._keys, verify=False)
        (result,) = self._hierarchy.poll()
        for number, (page, sums) in enumerate(zip(result.pages, result.checksums, strict=True)):
            parts = [(number * PAGE_BYTES, self._spec)]
            if page is None or not self._store.write_verified(parts, page, sums):
                raise RuntimeError(f"page {number} was not loaded")
        self._hierarchy.complete_load(job_id)

    @property
    def arena(self) -> np.ndarray:
        """uint8 [pages * bytes], as it was loaded."""
        return self._store.arena.numpy()

    def close(self) -> None:
        """Let the tiers go."""
        self._hierarchy.close()


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
