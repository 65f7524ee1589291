"""Fixtures for the tiers: a harness that drives a hierarchy as the engine does."""

import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from workbench.cache.keys import TierKey
from workbench.cache.tier import LoadResult, Lookup
from workbench.clock import Clock, RealClock
from workbench.config import TierSettings
from workbench.spatial.hierarchy import Hierarchy
from workbench.spatial.hierarchy.disk_space import least_capacity_bytes
from workbench.spatial.hierarchy.slow_tier import SlowTier

PAGE = 8192
MIB = 1024 * 1024


def mib(num_bytes: float) -> float:
    return num_bytes / MIB


def disk_mib(pages: float, page_bytes: int = PAGE) -> float:
    """A disk tier that holds so many pages, each with a header block, and no more."""
    return mib(least_capacity_bytes(int(pages * (4096 + page_bytes)))) if pages else 0.0


class Harness:
    """A hierarchy, the events it told, and the page that belongs to each key."""

    page_bytes = PAGE

    def __init__(self, dram_pages: float, disk_pages: float, clock: Clock, **more: Any) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.clock = clock
        self.settings = TierSettings(
            dram_mib=mib(dram_pages * PAGE), disk_mib=disk_mib(disk_pages), **more
        )
        self.h = Hierarchy(self.settings, PAGE, clock, lambda kind, data: self.note(kind, data))
        self.h.wait_io()  # a shared tier takes nothing until it knows what lies there

    def note(self, kind: str, data: dict[str, Any]) -> None:
        self.events.append((kind, data))

    def faults(self) -> list[tuple[str, str]]:
        return [(d["tier"], d["reason"]) for kind, d in self.events if kind == "tier_fault"]

    @property
    def disk(self) -> SlowTier:
        return self.h.mover.ladder.tiers[0]

    def key(self, number: int) -> bytes:
        return number.to_bytes(32, "little")

    def page(self, key: TierKey) -> np.ndarray:
        """The one right content of a key."""
        seed = zlib.crc32(repr(key).encode())
        return np.random.default_rng(seed).integers(0, 256, PAGE, dtype=np.uint8)

    def store(self, key: TierKey, num_slices: int = 4) -> bool:
        return self.h.store(key, self.page(key), num_slices)

    def settle(self) -> None:
        """Let all file transfers end and take effect."""
        assert self.h.wait_io()
        self.h.poll()

    def result(self, job_id: int) -> LoadResult:
        """Poll until the job is there (about a step of the engine at a time)."""
        for _ in range(20_000):
            for result in self.h.poll():
                if result.job_id == job_id:
                    return result
            time.sleep(0.0005)
        raise AssertionError(f"load job {job_id} was never delivered")

    def load(self, keys: list[TierKey]) -> list[str]:
        """Load, compare with the truth, complete; returns the tier of each key ("" for a miss)."""
        job_id = self.h.submit_load(keys)
        result = self.result(job_id)
        target = np.full((len(keys), PAGE), 0xA5, dtype=np.uint8)  # canary
        for row, key, page in zip(target, keys, result.pages, strict=True):
            if page is None:
                assert (row == 0xA5).all()
            else:
                row[:] = page
                assert (row == self.page(key)).all(), "wrong bytes"
        self.h.complete_load(job_id)
        return list(result.tiers)

    def load_slowly(self, keys: list[TierKey]) -> list[str]:
        """`load` where a throttle holds pages back on a modelled clock."""
        job_id = self.h.submit_load(keys)
        for _ in range(20):
            self.h.wait_io()
            self.clock.advance(1.0)  # type: ignore[attr-defined]
            for result in self.h.poll():
                if result.job_id == job_id:
                    self.h.complete_load(job_id)
                    return list(result.tiers)
        raise AssertionError(f"load job {job_id} was never delivered")

    def is_hit(self, key: TierKey) -> bool:
        return self.h.lookups.lookup(key) is Lookup.HIT


@pytest.fixture
def harness() -> Iterator[Callable[..., Harness]]:
    """Builds harnesses; checks and closes every one at the end."""
    opened: list[Harness] = []

    def build(
        dram_pages: float, disk_pages: float = 0, clock: Clock | None = None, **more: Any
    ) -> Harness:
        opened.append(Harness(dram_pages, disk_pages, clock or RealClock(), **more))
        return opened[-1]

    yield build
    for each in opened:
        if not each.h._closed:
            each.h.wait_io()
            each.h.check_integrity()
            each.h.close()
            assert not any(tier.io.alive for tier in each.h.mover.ladder.tiers)
