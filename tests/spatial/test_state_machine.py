"""Random schedules of everything at once: no wrong bytes, no lost pins, no byte uncounted.

A gate in the tiers' threads lets Hypothesis decide what happens before, while and after a transfer:
while it is open, every transfer has ended when its outcome is asked for.
"""

import dataclasses
import os
import tempfile
import threading
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.spatial.conftest import disk_mib
from workbench.cache.keys import PrivateKey, TierKey
from workbench.cache.tier import LoadResult, Lookup
from workbench.clock import ManualClock
from workbench.config import TierSettings
from workbench.spatial.hierarchy import Hierarchy
from workbench.spatial.hierarchy.faults import FAULTS, inject
from workbench.spatial.hierarchy.io_thread import Outcome

UNIT = 4096
MIB = 1024 * 1024
PREFIX = [bytes([number]) * 32 for number in range(6)]
PRIVATE = [PrivateKey(r, e, 0, i) for r in "ab" for e in range(2) for i in range(2)]
keys = st.sampled_from([*PREFIX, *PRIVATE])


def page_of(key: TierKey) -> np.ndarray:
    seed = zlib.crc32(repr(key).encode())
    size = (1 + seed % 3) * UNIT
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


PAGES = {key: page_of(key) for key in [*PREFIX, *PRIVATE]}


class Tiers(RuleBasedStateMachine):
    """The engine's calls in any order, with real faults and live changes in between."""

    @initialize(
        dram=st.sampled_from([0, 3, 5]),
        disk=st.sampled_from([0, 4, 8]),
        objects=st.sampled_from([0, 0, 6]),
        seed=st.integers(0, 99),
    )
    def open(self, dram: int, disk: int, objects: int, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.rng = np.random.default_rng(seed)
        self.events: list[str] = []
        self.settings = TierSettings(
            dram_mib=dram * UNIT / MIB,
            disk_mib=disk_mib(disk, UNIT),
            object_url=os.path.join(self.folder.name, "objects") if objects else "",
            object_mib=objects * 2 * UNIT / MIB or 1.0,
        )
        self.h = Hierarchy(
            self.settings, UNIT, self.clock, lambda kind, data: self.events.append(kind)
        )
        self.jobs: dict[int, list[TierKey]] = {}
        self.delivered: dict[int, LoadResult] = {}
        self.stored: set[TierKey] = set()
        self.damaged = False
        self.gate: threading.Event | None = None

    @rule(key=keys, slices=st.sampled_from([1, 2, 8]))
    def store(self, key: TierKey, slices: int) -> None:
        page = PAGES[key].copy()
        epochs = [k.epoch for k in self.stored if isinstance(k, PrivateKey) and
                  isinstance(key, PrivateKey) and k.request_id == key.request_id]  # fmt: skip
        self.h.store(key, page, slices)
        if not isinstance(key, PrivateKey) or key.epoch >= max(epochs, default=0):
            self.stored.add(key)  # perhaps: whether a tier took it may hang on its speed
        if isinstance(key, PrivateKey):
            self.stored -= {
                k for k in PRIVATE if k.request_id == key.request_id and k.epoch < key.epoch
            }
        page[:] = 0xEE  # the engine reuses its page at once

    @rule(key=keys)
    def lookup(self, key: TierKey) -> None:
        answer = self.h.lookups.lookup(key)
        if answer is Lookup.RETRY and self.settings.object_url:
            return  # others may have put it there
        if answer is not Lookup.MISS:
            assert key in self.stored

    @rule(many=st.lists(keys, min_size=1, max_size=6, unique=True))
    def know(self, many: list[TierKey]) -> None:
        if self.h.lookups.know(many) and self.gate is None:
            self.h.wait_io()
            assert self.h.lookups.num_at_hand(many) <= len(many)

    @rule(many=st.lists(keys, min_size=3, max_size=6, unique=True))
    def store_many(self, many: list[TierKey]) -> None:
        for key in many:
            self.store(key, 2)
            if self.gate is None:
                self.h.wait_io()

    @rule(data=st.data(), more=st.lists(keys, max_size=1))
    def submit(self, data: st.DataObject, more: list[TierKey]) -> None:
        known = st.sampled_from(sorted(self.stored or PREFIX, key=repr))
        wanted = data.draw(st.lists(known, min_size=1, max_size=5)) + more
        assert self.h.lookups.estimate_load_s(wanted) >= 0
        self.jobs[self.h.submit_load(wanted)] = wanted

    @precondition(lambda self: self.gate is None and self.stored)
    @rule()
    def load_everything(self) -> None:
        """One job after the other, so that each page crosses up once."""
        for key in sorted(self.stored, key=repr):
            job_id = self.h.submit_load([key])
            self.jobs[job_id] = [key]
            self.settle()
            self.check_pages(self.delivered.pop(job_id))
            del self.jobs[job_id]
            self.h.complete_load(job_id)
        self.settle()

    @rule()
    def poll(self) -> None:
        if self.gate is None:
            assert self.h.wait_io()  # so that the machine's own run hangs on no thread's speed
        for result in self.h.poll():
            assert result.job_id in self.jobs and result.job_id not in self.delivered
            assert result.keys == tuple(self.jobs[result.job_id])
            self.delivered[result.job_id] = result
            self.check_pages(result)

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.delivered)))
        self.check_pages(self.delivered.pop(job_id))  # still valid: pinned all the while
        del self.jobs[job_id]
        self.h.complete_load(job_id)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        del self.jobs[job_id]
        self.delivered.pop(job_id, None)
        self.h.cancel_load(job_id)

    @rule(request_id=st.sampled_from("ab"))
    def drop_private(self, request_id: str) -> None:
        self.h.drop_private(request_id)
        self.stored -= {key for key in PRIVATE if key.request_id == request_id}

    @precondition(lambda self: len(self.stored) > 5)
    @rule()
    def clear(self) -> None:
        self.h.clear()
        self.stored -= set(PRIVATE)
        if not os.path.exists(os.path.join(self.folder.name, "objects")):
            self.stored.clear()  # objects outlive a tier that was off meanwhile

    @rule(
        what=st.sampled_from(
            [
                "dram",
                "dram",
                "disk",
                "disk",
                "path",
                "throttle",
                "objects",
                "write",
                "moves",
                "link",
            ]
        ),
        size=st.sampled_from([0, 2, 3, 4, 6]),
        path=st.sampled_from(["", "one", "two"]),
    )
    def configure(self, what: str, size: int, path: str) -> None:
        self.open_gate()  # closing a disk waits for its transfers
        given = {
            "dram": {"dram_mib": size * UNIT / MIB},
            "disk": {"disk_mib": disk_mib(size, UNIT)},
            "path": {"disk_path": os.path.join(self.folder.name, path) if path else ""},
            "throttle": {
                "dram_throttle_mb_s": size / 2,
                "disk_throttle_mb_s": size / 4,
                "object_throttle_mb_s": size / 4,
            },
            "objects": {
                "object_url": os.path.join(self.folder.name, "objects") if size > 2 else "",
                "object_mib": 8 * UNIT / MIB,
            },
            "write": {
                "write": ("back", "through", "selective")[size % 3],
                "write_hits": 1 + size % 2,
            },
            "link": {
                "disk_layout": ("block_first", "layer_first")[size % 2],
                "object_split": ("order", "equal", "slack")[size % 3],
                "backpressure": ("off", "refuse", "wait")[size % 3],
                "backlog_s": 0.01,
            },
            "moves": {
                "inclusive": ("inclusive", "exclusive")[size % 2],
                "admission": ("presence", "frequency", "tinylfu")[size % 3],
                "watermark": (1.0, 0.7)[size % 2],
            },
        }[what]
        self.settings = dataclasses.replace(self.settings, **given)
        self.h.configure(self.settings)

    @rule(key=keys, seconds=st.sampled_from([-1.0, 0.01, float("inf")]))
    def pin(self, key: TierKey, seconds: float) -> None:
        if self.h.holds.pin(key, seconds):
            assert key in self.stored

    @rule(kind=st.sampled_from(FAULTS))
    def fault(self, kind: str) -> None:
        self.damaged |= inject(self.h, kind, self.rng) is not None

    @precondition(lambda self: self.gate is None and self.stored)
    @rule()
    def fault_and_load(self) -> None:
        """Damage a page and ask for that very page, each way: it is right, or a counted miss."""
        for kind in FAULTS:
            self.settle()
            fault = inject(self.h, kind, self.rng)
            self.damaged |= fault is not None
            if fault is None:
                continue
            job_id = self.h.submit_load([fault.key])
            self.jobs[job_id] = [fault.key]
            self.settle()
            self.check_pages(self.delivered.pop(job_id))
            del self.jobs[job_id]
            self.h.complete_load(job_id)

    @rule()
    def shut_gate(self) -> None:
        if self.gate is None:
            assert self.h.wait_io()
            gate = self.gate = threading.Event()

            def wait() -> Outcome:
                gate.wait(30)
                return Outcome()

            for tier in self.h.mover.ladder.tiers:
                tier.io.submit(wait, lambda outcome: None)

    @rule()
    def open_gate(self) -> None:
        if self.gate is not None:
            self.gate.set()
            self.gate = None

    @rule(seconds=st.sampled_from([0.001, 0.02]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.gate is None)
    @rule()
    def settle(self) -> None:
        for _ in range(20):  # what a throttle lets pass may push other pages down
            assert self.h.wait_io()
            self.clock.advance(10.0)
            self.poll()
            if self.h.stats().num_transfers_pending == 0:
                break
        assert set(self.delivered) == set(self.jobs)  # every load ends
        if not self.jobs:
            stats = self.h.stats()
            assert stats.staging_used_bytes == 0
            assert all(tier.pinned_bytes == 0 for tier in stats.tiers)
        self.h.check_integrity(strict=not self.damaged)
        if not self.damaged:
            reasons = set().union(*(tier.faults for tier in self.h.stats().tiers))
            self.check_reasons(reasons)

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "h"):
            return
        self.h.check_integrity()
        for table in ("G2", "G3", "G4"):
            assert {row[0] for row in self.h.entries(table)} <= self.stored

    def check_reasons(self, reasons: set[str]) -> None:
        assert reasons <= {"no_room"}

    def check_pages(self, result: LoadResult) -> None:
        for key, page, tier in zip(result.keys, result.pages, result.tiers, strict=True):
            assert (page is None) == (tier == "")
            if page is not None:
                assert np.array_equal(page, PAGES[key]), "wrong bytes"

    def teardown(self) -> None:
        if not hasattr(self, "h"):
            return
        self.open_gate()
        place = self.h.stats().tiers[1].place
        self.h.close()
        assert not any(tier.io.alive for tier in self.h.mover.ladder.tiers)
        assert self.h.mover.memory.live_bytes == 0
        assert not place or not os.path.exists(place)
        self.folder.cleanup()


TestTiers = Tiers.TestCase
TestTiers.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking threads takes minutes
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.long
class TestTiersLong(Tiers.TestCase):
    """The same machine, for longer."""

    settings = settings(
        max_examples=600,
        stateful_step_count=80,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
