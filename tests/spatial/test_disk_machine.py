"""Any order of puts, gets, removals, caps, damage and restarts, against a dict."""

import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.spatial.media import CANARY, key_of, page_of, private_key, put_of
from workbench.cache.page_copy import slice_checksums
from workbench.settings.tiers import DISK_LAYOUTS
from workbench.spatial.hierarchy import disk_faults
from workbench.spatial.hierarchy.direct_io import DiskWays
from workbench.spatial.hierarchy.disk_file import LEAST_CAPACITY_BYTES, DiskFile
from workbench.spatial.hierarchy.medium import Get, Put, is_private

KIB = 1024
KEYS = [*(key_of(number) for number in range(10)), private_key("a"), private_key("b")]
keys = st.sampled_from(KEYS)
sizes = st.sampled_from([1, 100, 4096, 4097, 8192, 20_000, 40_960])
capacities = st.sampled_from([LEAST_CAPACITY_BYTES, 40 * KIB, 100 * KIB, 256 * KIB, 300_000])
ways = st.builds(
    DiskWays, st.booleans(), st.booleans(), st.sampled_from([1, 2, 32]), st.booleans(),
    st.sampled_from(DISK_LAYOUTS),
)  # fmt: skip


def shifted(page: np.ndarray, shift: int) -> np.ndarray:
    """The same page at another address."""
    room = np.full(page.nbytes + 64, CANARY, np.uint8)
    room[shift : shift + page.nbytes] = page
    return room[shift : shift + page.nbytes]


class Machine(RuleBasedStateMachine):
    """`held`: what must be there, oldest use first."""

    @initialize(capacity=capacities, way=ways)
    def open(self, capacity: int, way: DiskWays) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.way = way
        self.held: dict[bytes, Put] = {}
        self.damaged: set[bytes] = set()
        self.seed = 0
        self.disk = DiskFile(self.folder.name, capacity, True, way)

    @rule(layout=st.sampled_from(DISK_LAYOUTS), coalesce=st.booleans())
    def arrange(self, layout: str, coalesce: bool) -> None:
        self.disk.arrange(layout, coalesce)

    @rule(batch=st.lists(st.tuples(keys, sizes, st.integers(0, 63)), min_size=1, max_size=5))
    def put(self, batch: list[tuple[bytes, int, int]]) -> None:
        puts = []
        for key, size, shift in batch:
            self.seed += 1
            put = put_of(key, page_of(self.seed, size), 5 if size % 5 == 0 else 1)
            puts.append(Put(put.record, shifted(put.payload, shift)))
        used = sum(self.disk.charge_bytes(put.record) for put in [*self.held.values(), *puts])
        done = self.disk.put(puts)
        for put, each in zip(puts, done, strict=True):
            assert each.reason == "" or (
                each.reason == "over_cap" and used > self.disk.usable_bytes
            )
            if not each.reason:
                assert each.real_bytes == self.disk.charge_bytes(put.record)
                self.held.pop(put.record.key, None)
                self.held[put.record.key] = put
                self.damaged.discard(put.record.key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        gets, puts = [], []
        for key in data.draw(st.lists(st.sampled_from(list(self.held)), min_size=1, max_size=4)):
            put = self.held[key]
            first = data.draw(st.integers(0, put.payload.nbytes - 1))
            size = data.draw(st.integers(1, put.payload.nbytes - first))
            room = np.full(size + 96, CANARY, np.uint8)
            gets.append(Get(put.record, first, room[32 : 32 + size]))
            puts.append((put, first, room))
            self.held[key] = self.held.pop(key)
        for (put, first, room), done in zip(puts, self.disk.get(gets), strict=True):
            assert done.reason == ""
            assert (room[:32] == CANARY).all() and (room[-64:] == CANARY).all()
            if put.record.key not in self.damaged:
                assert (room[32:-64] == put.payload[first : first + room.nbytes - 96]).all()

    @rule(chosen=st.lists(keys, min_size=1, max_size=4))
    def remove(self, chosen: list[bytes]) -> None:
        assert {done.reason for done in self.disk.remove(chosen)} == {""}
        for key in chosen:
            self.held.pop(key, None)

    @rule(key=keys)
    def absent(self, key: bytes) -> None:
        put = put_of(key, page_of(0, 50), 1)
        assert self.disk.get([Get(put.record, 0, np.empty(50, np.uint8))])[0].reason == "gone"
        expected = self.held[key].record if key in self.held else None
        assert self.disk.probe([key]) == [expected]

    @rule(capacity=capacities)
    def resize(self, capacity: int) -> None:
        used = self.disk.real_bytes
        fits = self.disk.resize(capacity)
        assert fits or used > self.disk.usable_bytes
        assert self.disk.capacity_bytes == capacity

    @precondition(lambda self: self.held)
    @rule(data=st.data(), bit=st.integers(0, 7))
    def flip(self, data: st.DataObject, bit: int) -> None:
        key = data.draw(st.sampled_from(list(self.held)))
        if key in self.damaged:  # flipped twice it might be whole again
            return
        put = self.held[key]
        at = data.draw(st.integers(0, put.payload.nbytes - 1))
        disk_faults.flip_payload_bit(self.disk, key, at, bit)
        out = np.empty(put.payload.nbytes, np.uint8)
        assert self.disk.get([Get(put.record, 0, out)])[0].reason == ""
        assert slice_checksums(out, 1) != put.record.checksums
        self.held[key] = self.held.pop(key)
        self.damaged.add(key)

    @rule(capacity=capacities, way=ways, killed=st.booleans())
    def reopen(self, capacity: int, way: DiskWays, killed: bool) -> None:
        if killed:  # what the process leaves without a word of farewell; only the order is lost
            self.disk._let_go(keep=True)
        else:
            self.disk.close(keep=True)
        self.disk = DiskFile(self.folder.name, capacity, True, way)
        found = [record.key for record, _ in self.disk.scan()]
        expected = [key for key in self.held if not is_private(key)]
        charges = sum(self.disk.charge_bytes(self.held[key].record) for key in expected)
        if charges <= self.disk.usable_bytes:
            assert sorted(found) == sorted(expected)
        else:
            assert set(found) <= set(expected)
        if not killed:
            assert found == expected[len(expected) - len(found) :]
        self.held = {key: self.held[key] for key in found}

    @invariant()
    def books_are_right(self) -> None:
        self.disk.check()
        charges = [self.disk.charge_bytes(put.record) for put in self.held.values()]
        assert self.disk.real_bytes == sum(charges)
        if sum(charges) <= self.disk.usable_bytes:
            assert self.disk.file_bytes <= self.disk.capacity_bytes

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            for put in self.held.values():
                out = np.empty(put.payload.nbytes, np.uint8)
                assert self.disk.get([Get(put.record, 0, out)])[0].reason == ""
                assert put.record.key in self.damaged or (out == put.payload).all()
            self.disk.close(keep=False)
            self.folder.cleanup()


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]
TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=CHECKS
)


@pytest.mark.long
def test_many_more_orders() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=1500, stateful_step_count=60, deadline=None, suppress_health_check=CHECKS
        ),
    )
