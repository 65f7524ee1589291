"""Host memory is pinned for a GPU while it lives, each buffer once, and not a moment longer."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, build, pages, tokens
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.spatial.hierarchy.aligned import ALIGN, address
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.spatial.hierarchy.host_memory import HostMemory


class Ledger:
    """Keeps what a driver would keep, and refuses what one would refuse."""

    def __init__(self, most_bytes: int = 1 << 40) -> None:
        self.ranges: dict[int, int] = {}
        self.most_bytes = most_bytes

    def pin(self, buffer: np.ndarray) -> bool:
        start, end = address(buffer), address(buffer) + buffer.nbytes
        assert start % ALIGN == 0
        assert all(end <= at or start >= at + size for at, size in self.ranges.items())
        if sum(self.ranges.values()) + buffer.nbytes > self.most_bytes:
            return False
        self.ranges[start] = buffer.nbytes
        return True

    def unpin(self, buffer: np.ndarray) -> None:
        assert self.ranges.pop(address(buffer)) == buffer.nbytes


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([4096, 12_345, 300_000]), st.booleans()), max_size=40))
def test_every_buffer_is_pinned_while_it_lives(steps: list[tuple[int, bool]]) -> None:
    pins = Ledger(most_bytes=5 << 20)
    memory = HostMemory(8 << 20, pins)
    held: list[np.ndarray] = []
    for size, gives in steps:
        if gives and held:
            memory.give(held.pop(0))
        else:
            held.append(memory.take(size))
            held[-1][:] = 7
        assert memory.pinned_bytes == sum(pins.ranges.values())
        assert memory.pinned_bytes <= memory.live_bytes + memory.spare_bytes
    for buffer in held:
        memory.give(buffer)
    memory.set_limit(0)
    assert not pins.ranges and memory.pinned_bytes == 0


def test_a_hierarchy_gives_all_of_it_back_and_says_what_it_is() -> None:
    pins = Ledger()
    config = TierSettings(dram_mib=2.0, disk_mib=4.0)
    page = np.arange(65_536, dtype=np.uint8)
    with Hierarchy(config, page.nbytes, RealClock(), lambda *_: None, host_pins=pins) as tiers:
        for number in range(40):
            tiers.store(number.to_bytes(32, "little"), page, 4)
        assert tiers.stats().tiers[0].way == "pinned" and pins.ranges
        tiers.wait_io()
        tiers.check_integrity(strict=True)
    assert not pins.ranges


def test_memory_that_cannot_be_pinned_serves_all_the_same() -> None:
    config = TierSettings(dram_mib=2.0)
    page = np.arange(65_536, dtype=np.uint8)
    pins = Ledger(most_bytes=1 << 20)
    with Hierarchy(config, page.nbytes, RealClock(), lambda *_: None, host_pins=pins) as tiers:
        for number in range(30):
            assert tiers.store(number.to_bytes(32, "little"), page, 4)
        assert tiers.stats().tiers[0].way == "pageable"
        tiers.check_integrity(strict=True)


def test_without_a_gpu_nothing_is_said_of_pins() -> None:
    runner = Runner(build({"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 1.0}))
    runner.one(tokens(60), 4)
    assert runner.engine.hierarchy.stats().tiers[0].way == ""
    runner.engine.close()
