"""Pool, manager and tiers under random operations (I1-I8, I12), without a model.

Bytes are written by the test: each slot of a page holds a number made from its token and position,
so that a wrong page shows as wrong bytes.
"""

import os
from types import SimpleNamespace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from workbench.cache.block_pool import BlockPool
from workbench.cache.geometry import build_geometry
from workbench.cache.keys import CacheIdentity
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.prefix_index import PrefixIndex
from workbench.clock import RealClock
from workbench.config import TierSettings
from workbench.engine import integrity
from workbench.engine.byte_guard import ByteGuard
from workbench.request import Request, RequestSpec, RequestStatus
from workbench.spatial.hierarchy.faults import FAULTS, inject
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.temporal.scheduling.fetcher import Fetch, Fetcher

SIZE = 4
HEAD_DIM = 16
TEXTS = [list(range(40)), list(range(40)), list(range(12)) + list(range(100, 128))]


class Cache(RuleBasedStateMachine):
    """Requests come, grow, share, are evicted, swapped and loaded, and go."""

    @initialize(
        grouping=st.sampled_from(["model", "halves"]), num_layers=st.sampled_from([2, 3]),
        num_pages=st.integers(18, 40), tiers=st.booleans(),
    )  # fmt: skip
    def build(self, grouping: str, num_layers: int, num_pages: int, tiers: bool) -> None:
        geometry = build_geometry(
            grouping, num_layers=num_layers, num_kv_heads=1, head_dim=HEAD_DIM
        )
        specs = [group.page_spec(HEAD_DIM, SIZE, "fp32", "fp32") for group in geometry.groups]
        slab = 2 * max(spec.page_bytes for spec in specs)
        index = PrefixIndex(lambda row: None, lambda row: None)
        self.pool = BlockPool(
            num_slabs=num_pages, slab_bytes=slab, index=index,
            smallest_page_bytes=min(spec.page_bytes for spec in specs),
            before_evict=lambda row: self.fetcher.demote(row),
        )  # fmt: skip
        self.manager = KVCacheManager(
            pool=self.pool, geometry=geometry, classes=[self.pool.class_of(s) for s in specs],
            block_size=SIZE, max_model_len=256, format_label="fp32",
            root_key=lambda request: CacheIdentity("", "", "", "", SIZE).root(request.spec.salt),
        )  # fmt: skip
        self.store = PageStore(num_pages * slab, "cpu")
        row_bytes = sum(spec.page_bytes for spec in specs)
        self.hierarchy = Hierarchy(
            TierSettings(dram_mib=12 * row_bytes / 2**20, disk_mib=0.25 if tiers else 0.0),
            row_bytes, RealClock(), lambda kind, data: None,
        )  # fmt: skip
        self.fetcher = Fetcher(self.manager, self.store, self.hierarchy, lambda n: None,
                               gate=False, enabled=True)  # fmt: skip
        self.guard = ByteGuard()
        self.requests: list[Request] = []  # with tables
        self.waiting: list[Request] = []
        self.named = 0
        self.rng = np.random.default_rng(0)

    # ---- rules

    @rule(text=st.sampled_from(TEXTS), length=st.sampled_from([8, 16, 23, 40]),
          salt=st.sampled_from(["", "", "", "x"]), own=st.integers(0, 2))  # fmt: skip
    def arrive(self, text: list[int], length: int, salt: str, own: int) -> None:
        self.named += 1
        tokens = text[:length] + [200 + self.named] * own
        request = Request(str(self.named), RequestSpec(token_ids=tokens, salt=salt), tokens, 0.0)
        request.owner = self.named % 255
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), chunk=st.sampled_from([16, 40, 3]), reserve=st.integers(0, 12))
    def admit(self, data: st.DataObject, chunk: int, reserve: int) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        hit = self.manager.find_prefix(request)
        assert hit.num_tokens <= request.num_tokens - 1  # I12
        if request.status is not RequestStatus.LOADING:
            if self.fetcher.consider(request, hit) is Fetch.LOADING:
                request.status = RequestStatus.LOADING
        if request.status is RequestStatus.LOADING:
            return
        before = self.state()
        record = self.fetcher.swap_record(request)
        if record is not None:
            admitted = self.fetcher.restore(request, record)
            known = record.num_computed_tokens
        else:
            loaded, lineage = self.fetcher.usable_pages(request, hit)
            known = hit.num_tokens + len(loaded) * SIZE
            assert known <= request.num_tokens - 1
            count = min(chunk, request.num_tokens - known)
            admitted = self.manager.admit(request, hit, len(loaded) * SIZE + count,
                                          reserve_tokens=reserve, lineage=lineage)  # fmt: skip
            if admitted and loaded:
                self.fetcher.write_pages(request, len(hit.rows), loaded)
                self.manager.commit(request, len(loaded) * SIZE)
                self.manager.publish(request, known)
        if not admitted:
            assert self.state() == before  # I5
            return
        self.fetcher.release(request, finished=False)
        request.num_computed_tokens = known
        request.status = RequestStatus.RUNNING
        self.waiting.remove(request)
        self.requests.append(request)
        self.verify_bytes(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.sampled_from([16, 4, 1]))
    def compute(self, data: st.DataObject, count: int) -> None:
        """Compute known tokens, or append one as decoding does."""
        request = data.draw(st.sampled_from(self.requests))
        left = request.num_tokens - request.num_computed_tokens
        if left == 0 and request.num_tokens < 120:
            request.token_ids.append(request.num_tokens % 7)
            left = 1
        count = min(count, left)
        before = self.state()
        if not self.manager.grow(request, count):
            assert self.state() == before  # I5
            return
        self.write(request, count)
        self.manager.commit(request, count)
        request.num_computed_tokens += count
        self.manager.publish(request, request.num_computed_tokens)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def evict_pages(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        group = data.draw(st.integers(0, len(self.manager.classes) - 1))
        blocks = self.manager.requests[request.request_id]
        full = int(blocks.stored_len[group]) // SIZE
        if full > 1:  # policies keep the newest page
            pages = data.draw(st.sets(st.integers(0, full - 2), max_size=3))
            self.manager.evict_pages(request, group, sorted(pages))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), swap=st.booleans())
    def preempt(self, data: st.DataObject, swap: bool) -> None:
        request = data.draw(st.sampled_from(self.requests))
        blocks = self.manager.requests[request.request_id]
        even = len(set(blocks.num_pages.tolist())) == len(set(blocks.stored_len.tolist())) == 1
        if swap and even:
            self.fetcher.swap_out(request)
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.requests.remove(request)
        self.waiting.append(request)

    @precondition(lambda self: self.requests or self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests + self.waiting))
        self.manager.free(request)
        self.fetcher.release(request, finished=True)
        (self.requests if request in self.requests else self.waiting).remove(request)

    @rule()
    def poll(self) -> None:
        for request in self.fetcher.poll():
            request.status = RequestStatus.WAITING

    @rule(kind=st.sampled_from(FAULTS))
    def damage(self, kind: str) -> None:
        self.hierarchy.wait_io()
        inject(self.hierarchy, kind, self.rng)

    @rule(data=st.data())
    def evict_rows(self, data: st.DataObject) -> None:
        idle = self.pool.eviction_order(data.draw(st.sampled_from(self.manager.classes)))
        if idle:
            self.pool.drop(self.pool.row_of[idle[0]])

    # ---- bytes

    def write(self, request: Request, count: int) -> None:
        for at in range(request.num_computed_tokens, request.num_computed_tokens + count):
            for group in range(len(self.manager.classes)):
                self.slot(request, group, at)[:] = self.content(request, at)

    def content(self, request: Request, at: int) -> float:
        return float(request.token_ids[at] * 1000 + at)

    def slot(self, request: Request, group: int, at: int) -> np.ndarray:
        """The slot of a token about to be stored: one float32 row of the page."""
        blocks = self.manager.requests[request.request_id]
        spec = self.pool.classes[self.manager.classes[group]]
        index = int(blocks.stored_len[group]) + at - request.num_computed_tokens
        offset = int(self.pool.offset[blocks.table[group, index // SIZE]])
        page = self.store.arena[offset : offset + spec.page_bytes].numpy().view(np.float32)
        return page.reshape(SIZE, -1)[index % SIZE]

    def verify_bytes(self, request: Request) -> None:
        """Whatever is stored for a request is what its own tokens wrote, in every group."""
        blocks = self.manager.requests[request.request_id]
        for group in range(len(self.manager.classes)):
            spec = self.pool.classes[self.manager.classes[group]]
            for index in range(int(blocks.stored_len[group])):
                page = index // SIZE
                at = int(blocks.pos[group, index])
                offset = int(self.pool.offset[blocks.table[group, page]])
                data = self.store.arena[offset : offset + spec.page_bytes].numpy()
                row = data.view(np.float32).reshape(SIZE, -1)[index % SIZE]
                assert (row == self.content(request, at)).all(), "wrong bytes"

    # ---- invariants

    def state(self) -> tuple[object, ...]:
        lists = [self.pool.linked_blocks(cls) for cls in range(len(self.pool.classes))]
        return (self.pool.ref_cnt.tolist(), lists, self.pool.cached.tolist(),
                sorted(self.manager.requests), len(self.pool.index))  # fmt: skip

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "guard"):
            return
        stack = SimpleNamespace(pool=self.pool, manager=self.manager, store=self.store,
                                budget_bytes=self.store.num_bytes)  # fmt: skip
        integrity.verify(SimpleNamespace(  # type: ignore[arg-type]
            stack=stack, byte_guard=self.guard, hierarchy=self.hierarchy,
            scheduler=SimpleNamespace(running=self.requests, waiting=self.waiting),
            config=SimpleNamespace(cache=SimpleNamespace(block_size=SIZE)),
        ))  # fmt: skip
        self.guard.record(stack)  # type: ignore[arg-type]

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
        self.hierarchy.close()


Cache.TestCase.settings = settings(
    max_examples=int(os.environ.get("STATE_MACHINE_EXAMPLES", "80")), stateful_step_count=50,
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestCache = Cache.TestCase
