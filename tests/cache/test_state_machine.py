"""Pool, manager and tiers under random operations (I1-I8, I12), without a model.

What a fault needs to be found is made likely: every example begins with requests that share a
prefix, and one rule does what a step of the engine does. Hypothesis leaves rules out at random, so
with arriving, admitting and computing as rules of their own most examples would do nothing at all.
"""

import os
from types import SimpleNamespace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cache.driven_cache import SIZE, DrivenCache
from workbench.cache.keys import PrivateKey
from workbench.engine import integrity
from workbench.engine.byte_guard import ByteGuard
from workbench.request import RequestStatus
from workbench.spatial.hierarchy.faults import FAULTS, inject

SHARED, BRANCH, REPEATED = (
    list(range(40)), list(range(12)) + list(range(100, 128)), [7] * 40,
)  # fmt: skip
Arrival = tuple[list[int], int, str, int]
arrivals = st.tuples(  # text, its length, tenant, tokens of its own behind it
    st.sampled_from([SHARED, SHARED, BRANCH, REPEATED]), st.sampled_from([8, 16, 23, 40]),
    st.sampled_from(["", "", "", "x"]), st.integers(0, 1),
)  # fmt: skip
reserves = st.sampled_from([0, 0, 0, 12])


class Cache(DrivenCache, RuleBasedStateMachine):
    """Requests come, grow, share, are evicted, swapped and loaded, and go."""

    @initialize(
        grouping=st.sampled_from(["model", "halves", "halves", "layer"]),
        num_layers=st.sampled_from([2, 3, 3]),
        num_slabs=st.sampled_from([12, 16, 20, 28]), disk=st.booleans(),
        index=st.sampled_from(["hash", "radix"]), partial=st.booleans(),
        explicit=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def start(
        self,
        grouping: str,
        num_layers: int,
        num_slabs: int,
        disk: bool,
        index: str,
        partial: bool,
        explicit: bool,
    ) -> None:
        """Two requests share a prefix from the start, and a third comes back to it."""
        self.build(grouping, num_layers, num_slabs, disk, index)
        self.manager.lookup.partial_hits, self.manager.lookup.explicit = partial, explicit
        self.guard = ByteGuard()
        self.rng = np.random.default_rng(0)
        for own in range(2):
            self.arrive(SHARED, 23, "", own)
            self.admit(self.waiting[0], 40, 0)
        self.arrive(SHARED, 40, "", 0)

    @rule(new=arrivals)
    def submit(self, new: Arrival) -> None:
        self.arrive(*new)

    @rule(data=st.data(), new=arrivals, chunk=st.sampled_from([16, 40]), reserve=reserves)
    def step(self, data: st.DataObject, new: Arrival, chunk: int, reserve: int) -> None:
        """As the engine's: loads come in, who waits is admitted, and something is computed."""
        self.poll()
        if len(self.waiting) < 2:
            self.arrive(*new)
        first = data.draw(st.integers(0, len(self.waiting) - 1))
        queue = self.waiting[first:] + self.waiting[:first]
        if data.draw(st.booleans()):  # a swapped request is back before others fill its room
            queue.sort(key=self.fetcher.is_swapped, reverse=True)
        for request in queue[:3]:
            self.admit(request, chunk, reserve)
        if self.requests:
            self.compute(data.draw(st.sampled_from(self.requests)), chunk)

    @rule(data=st.data(), new=arrivals)
    def short_step(self, data: st.DataObject, new: Arrival) -> None:
        """The same in small chunks, which end inside a page."""
        self.step(data, new, 3, 0)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), left=st.sampled_from([0, 0, 1, 2, 4, 6]))
    def squeeze(self, data: st.DataObject, left: int) -> None:
        """A request takes all but a few pages for a while: whether one fits is a near thing."""
        wanted = data.draw(st.sampled_from(self.waiting))
        pages = next((n for n in range(60, 0, -1) if self.fits(n)), 0) - left
        if pages > 0:
            self.arrive([], 0, "", pages * SIZE)
            filler = self.waiting[-1]
            self.admit(filler, pages * SIZE, 0)
            self.admit(wanted, 40, 0)
            self.forget(filler)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        self.evict(data, data.draw(st.sampled_from(self.requests)))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), first=st.integers(0, 9), count=st.integers(4, 12),
          every=st.integers(1, 3))  # fmt: skip
    def pack(self, data: st.DataObject, first: int, count: int, every: int) -> None:
        request = data.draw(st.sampled_from(self.requests))
        group = data.draw(st.integers(0, len(self.manager.classes) - 1))
        DrivenCache.pack(self, request, group, first, count, every)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), swap=st.booleans(), evict=st.booleans())
    def preempt(self, data: st.DataObject, swap: bool, evict: bool) -> None:
        request = data.draw(st.sampled_from(self.requests))
        if evict:
            self.evict(data, request)
        if swap:
            self.swap_out(request)
        self.send_back(request)

    @precondition(lambda self: self.requests or self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.forget(data.draw(st.sampled_from(self.requests + self.waiting)))

    @rule(seconds=st.sampled_from([100.0, 300.0]))
    def wait(self, seconds: float) -> None:
        """Lifetimes of prompt caching go on, and end."""
        self.clock.advance(seconds)

    @rule(kind=st.sampled_from(FAULTS))
    def damage(self, kind: str) -> None:
        self.settle()
        inject(self.hierarchy, kind, self.rng)

    @rule(data=st.data(), everything=st.booleans())
    def evict_rows(self, data: st.DataObject, everything: bool) -> None:
        if everything:
            self.pool.drop_idle_rows()
            return
        idle = self.pool.eviction_order(data.draw(st.sampled_from(self.manager.classes)))
        if idle:
            row = self.pool.row_of[idle[0]]
            assert row is not None
            self.pool.drop(row)

    @rule(identity=st.sampled_from([0, 0, 1, 2, 3]), swap=st.booleans(), demote=st.booleans())
    def change_identity(self, identity: int, swap: bool, demote: bool) -> None:
        """Other weights or another format, as a rebuild: the tiers keep what they hold."""
        for request in list(self.requests):
            if swap:
                self.swap_out(request)
            self.send_back(request)
        if demote:
            self.pool.drop_idle_rows()
        self.identity = identity
        self.manager.keys.begin_format(("fp32", "other fp32")[identity // 2])
        for request in self.waiting:
            self.fetcher.release(request, finished=True)
            request.status = RequestStatus.WAITING
            request.chain_keys.clear()
        self.pool.evict_all()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "guard"):
            return
        stack = SimpleNamespace(pool=self.pool, manager=self.manager, store=self.store, values=None,
                                budget_bytes=self.store.num_bytes,
                                runner=SimpleNamespace(bounds=None))  # fmt: skip
        integrity.verify(SimpleNamespace(  # type: ignore[arg-type]
            stack=stack, byte_guard=self.guard, hierarchy=self.hierarchy,
            scheduler=SimpleNamespace(running=self.requests, waiting=self.waiting),
            config=SimpleNamespace(cache=SimpleNamespace(block_size=SIZE)),
        ))  # fmt: skip
        self.guard.record(stack)  # type: ignore[arg-type]

    @invariant()
    def kept_blocks_are_those_of_living_entries(self) -> None:
        """Prompt caching: a block is kept as long as one entry that contains it lives."""
        if not hasattr(self, "guard"):
            return
        now, entries = self.clock.now_s(), self.lifetimes._entries.values()
        alive = {key for each in entries if each.expires_s > now for key in each.chain}
        assert alive == {key for key in self.lifetimes._until if self.lifetimes.keeps(key)}

    @invariant()
    def private_entries_are_leased(self) -> None:
        """Decision 6: what only one request may read dies with its need for it."""
        if not hasattr(self, "guard"):
            return
        records = [self.fetcher.swaps.record(request) for request in self.waiting]
        leased = {key for record in records if record for key in record.keys}
        for tier in ("G2", "G3"):
            private = {row[0] for row in self.hierarchy.entries(tier) if type(row[0]) is PrivateKey}
            assert private <= leased, "a private entry has outlived its swap"

    def teardown(self) -> None:
        if not hasattr(self, "guard"):
            return
        for request in self.requests:
            self.verify_bytes(request)
        for request in self.requests + self.waiting:
            self.manager.free(request)
            self.fetcher.release(request, finished=True)
        assert not (self.pool.ref_cnt > 0).any()
        self.pool.evict_all()
        assert self.pool.num_unassigned_slabs == self.pool.num_slabs
        self.poll()
        stats = self.hierarchy.stats()
        assert stats.num_jobs == sum(tier.pinned_bytes for tier in stats.tiers) == 0
        self.hierarchy.close()


Cache.TestCase.settings = settings(
    max_examples=int(os.environ.get("STATE_MACHINE_EXAMPLES", "60")), stateful_step_count=50,
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestCache = Cache.TestCase
