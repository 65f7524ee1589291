"""What a tier costs is measured when it opens: bounded, both ways, and with nothing left behind."""

import numpy as np
import pytest

from workbench.clock import ManualClock, RealClock
from workbench.config import TierSettings
from workbench.spatial.hierarchy import Hierarchy
from workbench.spatial.hierarchy.cost_probe import (
    PROBE_BYTES,
    PROBE_ROUNDS,
    PROBE_S,
    CostProbe,
    probe_sizes,
)


def quiet(kind: str, data: dict[str, object]) -> None:
    """Nobody listens."""


def test_a_fast_medium_is_measured_at_every_size() -> None:
    clock = ManualClock()
    probe = probe_sizes(PROBE_BYTES, lambda size: (2e-3, 1e-3), clock)
    assert [size.num_bytes for size in probe.sizes] == list(PROBE_BYTES)
    assert {len(size.seconds) for size in probe.sizes} == {PROBE_ROUNDS}
    assert probe.sizes[0].store_s == 2e-3 and probe.sizes[0].load_s == 1e-3
    assert len(probe.transfers) == PROBE_ROUNDS * len(PROBE_BYTES)


@pytest.mark.parametrize("rate", [1e9, 5e6, 1e5, 1e3])
def test_a_slow_medium_is_asked_for_no_more_than_there_is_time_for(rate: float) -> None:
    clock = ManualClock()

    def move(size: int) -> tuple[float, float]:
        clock.advance(2 * size / rate)
        return size / rate, size / rate

    probe = probe_sizes(PROBE_BYTES, move, clock)
    first_s = 2 * PROBE_BYTES[0] / rate
    assert probe.sizes[0].num_bytes == PROBE_BYTES[0]
    assert probe.seconds <= max(PROBE_S, first_s) + 1e-9


def test_a_fault_ends_the_probe_and_keeps_what_is_known() -> None:
    answers = iter([(1.0, 1.0), None])
    probe = probe_sizes((1, 2, 3), lambda size: next(answers), ManualClock())
    assert [size.num_bytes for size in probe.sizes] == [1]
    assert probe_sizes((1, 2), lambda size: None, ManualClock()) == CostProbe()


def test_every_tier_that_is_on_is_measured_both_ways(tmp_path) -> None:
    settings = TierSettings(
        dram_mib=8, disk_mib=32, shared="store", shared_mib=32, object_url=str(tmp_path),
        object_mib=32,
    )  # fmt: skip
    with Hierarchy(settings, 8192, RealClock(), quiet) as hierarchy:
        hierarchy.wait_io(30.0)
        stats = hierarchy.stats()
        for tier in stats.tiers:
            assert [size.num_bytes for size in tier.probe.sizes] == list(PROBE_BYTES), tier.name
            assert all(size.load_s > 0 < size.store_s for size in tier.probe.sizes)
            assert tier.fit.bandwidth_bytes_per_s > 0 < tier.store_fit.bandwidth_bytes_per_s
            assert not tier.used_bytes and not tier.num_entries and not tier.faults
            assert not tier.num_stores and not tier.num_loads
        for tier in hierarchy.mover.ladder.tiers:
            assert tier.medium is not None and tier.medium.real_bytes == 0, tier.name
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_tier_without_room_for_a_size_has_no_fault(tmp_path) -> None:
    settings = TierSettings(disk_mib=1.0, disk_path=str(tmp_path), disk_keep=True)
    rng = np.random.default_rng(0)
    with Hierarchy(settings, 8192, RealClock(), quiet) as hierarchy:
        assert max(size.num_bytes for size in hierarchy.stats().tiers[1].probe.sizes) == 262144
        for number in range(200):  # more than it holds
            page = rng.integers(0, 256, 8192, dtype=np.uint8)
            hierarchy.store(bytes([number]) * 32, page, 1)
            hierarchy.wait_io()
            hierarchy.poll()
        assert hierarchy.stats().tiers[1].num_evictions
    with Hierarchy(settings, 8192, RealClock(), quiet) as hierarchy:  # full when it is measured
        disk = hierarchy.stats().tiers[1]
        assert disk.num_entries and not disk.faults
