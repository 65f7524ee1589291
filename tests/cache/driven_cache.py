"""The cache that the state machine drives: pool, manager and tiers, wired as the engine does.

Bytes are written here: each slot of a page holds a number made from its token, position, tenant and
identity, so that a wrong page shows as wrong bytes.
"""

from functools import partial

import numpy as np
from hypothesis import strategies as st

from workbench.cache.block_pool import BlockPool
from workbench.cache.eviction import evict_pages, keep_slots
from workbench.cache.geometry import build_geometry
from workbench.cache.keys import CacheIdentity, PrivateKey
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.lifetimes import Lifetimes
from workbench.cache.page_roles import PageRoles
from workbench.cache.page_store import PageStore
from workbench.cache.prefix_index import HashIndex
from workbench.cache.radix_index import RadixIndex
from workbench.cache.row_slices import row_slices
from workbench.clock import ManualClock
from workbench.config import TierSettings
from workbench.request import Request, RequestSpec, RequestStatus
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.temporal.scheduling.fetcher import Fetcher
from workbench.temporal.scheduling.loads import Fetch

SIZE = 4
HEAD_DIM = 16


class DrivenCache:
    """What rules are made of; each does what scheduler and engine do at that point."""

    def build(
        self,
        grouping: str,
        num_layers: int,
        num_slabs: int,
        disk: bool,
        index_name: str = "hash",
    ) -> None:
        geometry = build_geometry(
            grouping, num_layers=num_layers, num_kv_heads=1, head_dim=HEAD_DIM
        )
        specs = [group.page_spec(HEAD_DIM, SIZE, "fp32", "fp32") for group in geometry.groups]
        slab = 2 * max(spec.page_bytes for spec in specs)
        kind = {"hash": HashIndex, "radix": RadixIndex}[index_name]
        index = kind(lambda row: None, lambda row: None)
        self.pool = BlockPool(
            num_slabs=num_slabs, slab_bytes=slab, index=index,
            smallest_page_bytes=min(spec.page_bytes for spec in specs),
            before_evict=lambda row: self.fetcher.demote(row),
        )  # fmt: skip
        self.identity = 0
        self.store = PageStore(num_slabs * slab, "cpu")
        self.clock = ManualClock()
        self.lifetimes = self.pool.lifetimes = Lifetimes(self.clock)
        self.manager = KVCacheManager(
            pool=self.pool, geometry=geometry,
            roles=PageRoles(SIZE, [self.pool.class_of(spec) for spec in specs]),
            max_model_len=256, format_label="fp32", root_key=self.root_key,
            store=self.store, lifetimes=self.lifetimes,
        )  # fmt: skip
        row_bytes = sum(spec.page_bytes for spec in specs)
        self.hierarchy = Hierarchy(
            TierSettings(dram_mib=12 * row_bytes / 2**20, disk_mib=0.25 if disk else 0.0),
            row_bytes, ManualClock(), lambda kind, data: None,
        )  # fmt: skip
        self.fetcher = Fetcher(self.manager, self.store, self.hierarchy, lambda n: None,
                               lambda: 0.0, row_slices(geometry, specs), enabled=True)  # fmt: skip
        self.fetcher.worth.gate = False
        self.requests: list[Request] = []  # with tables
        self.waiting: list[Request] = []
        self.named = 0

    def root_key(self, request: Request) -> bytes:
        weights = "ab"[self.identity % 2]
        return CacheIdentity(weights, "", "", "", SIZE).root(request.spec.salt)

    # ---- requests

    def arrive(self, text: list[int], length: int, salt: str, own: int) -> None:
        self.named += 1
        tokens = text[:length] + [200 + self.named % 50] * own
        request = Request(str(self.named), RequestSpec(token_ids=tokens, salt=salt), tokens, 0.0)
        request.owner = self.named % 255
        if self.named % 3 == 0 and tokens:  # prompt caching
            request.breakpoints = [(len(tokens), "5m")]
        self.waiting.append(request)

    def admit(self, request: Request, chunk: int, reserve: int) -> None:
        hit = self.manager.find_prefix(request)
        assert hit.num_tokens <= request.num_tokens - 1  # I12
        if self.manager.lookup.explicit and not request.breakpoints:
            assert hit.num_tokens == 0  # who marks nothing reads nothing
        if request.status is not RequestStatus.LOADING:
            self.settle()
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
            found = self.fetcher.usable_pages(request, hit)
            hit = hit.full if found.num_pages else hit
            num_loaded = found.num_pages * SIZE
            known = hit.num_tokens + num_loaded
            assert known <= request.num_tokens - 1
            count = min(chunk, request.num_tokens - known)
            admitted = self.manager.admit(request, hit, num_loaded + count,
                                          reserve_tokens=reserve,
                                          lineage=found.lineage)  # fmt: skip
            if admitted and found.num_pages:
                if not self.fetcher.place(request, len(hit.rows), found):  # a page was damaged
                    self.manager.free(request)
                    self.admit(request, chunk, reserve)
                    return
                self.manager.commit(request, num_loaded)
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
        self.compute(request, chunk)

    def compute(self, request: Request, count: int) -> None:
        """Compute known tokens, or append one as decoding does."""
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

    def evict(self, data: st.DataObject, request: Request) -> None:
        """Whole pages of one group."""
        group = data.draw(st.integers(0, len(self.manager.classes) - 1))
        full = int(self.manager.requests[request.request_id].stored_len[group]) // SIZE
        if full >= 2:  # policies keep the newest page
            pages = data.draw(st.sets(st.integers(0, full - 2), max_size=3))
            evict_pages(self.manager, request, group, sorted(pages))

    def pack(self, request: Request, group: int, first: int, count: int, every: int) -> None:
        """Single slots of one group, so that the others are packed into fewer pages."""
        stored = int(self.manager.requests[request.request_id].stored_len[group])
        gone = np.arange(first, stored - 1, every)[:count]
        kept = np.setdiff1d(np.arange(stored), gone)
        keep_slots(self.manager, request, group, kept, partial(self.move, group))
        self.verify_bytes(request)

    def move(
        self, group: int, first: int, source: list[int], slots: np.ndarray, target: list[int]
    ) -> None:
        moved = np.concatenate([self.page(group, block) for block in source])[slots]
        for at, block in enumerate(target):
            part = moved[at * SIZE : (at + 1) * SIZE]
            self.page(group, block)[: len(part)] = part

    def swap_out(self, request: Request) -> None:
        """What others hold as well stays and is found by its key; what is its own goes."""
        blocks = self.manager.requests[request.request_id]
        self.fetcher.swap_out(request)
        record = self.fetcher.swaps.record(request)
        for page, key in enumerate(record.keys if record else []):
            ids = blocks.row_at(page)
            row = self.pool.row_of[ids[0]] if ids[0] >= 0 else None
            if row and row.blocks == ids and (self.pool.ref_cnt[list(ids)] > 1).any():
                assert key == row.key, "a shared page was moved"
            else:
                assert isinstance(key, PrivateKey), "a page of its own was left behind"

    def send_back(self, request: Request) -> None:
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.requests.remove(request)
        self.waiting.append(request)

    def forget(self, request: Request) -> None:
        self.manager.free(request)
        self.fetcher.release(request, finished=True)
        (self.requests if request in self.requests else self.waiting).remove(request)

    def fits(self, pages: int) -> bool:
        classes = self.manager.classes
        return self.pool.can_allocate({cls: pages * classes.count(cls) for cls in classes})

    def poll(self) -> None:
        self.settle()
        for request in self.fetcher.poll():
            request.status = RequestStatus.WAITING

    def settle(self) -> None:
        """Let the I/O thread end what it has, so that an example runs the same each time."""
        while self.hierarchy.stats().num_transfers_pending:
            assert self.hierarchy.wait_io()

    # ---- bytes

    def write(self, request: Request, count: int) -> None:
        for at in range(request.num_computed_tokens, request.num_computed_tokens + count):
            for group in range(len(self.manager.classes)):
                self.slot(request, group, at)[:] = self.content(request, at)

    def content(self, request: Request, at: int) -> float:
        """Exact in float32: below 2**23, and no two of what must not be mixed up are equal."""
        who = 2 * self.identity + bool(request.spec.salt)
        return float((who * 256 + request.token_ids[at]) * 256 + at)

    def slot(self, request: Request, group: int, at: int) -> np.ndarray:
        """The slot of a token about to be stored."""
        blocks = self.manager.requests[request.request_id]
        index = int(blocks.stored_len[group]) + at - request.num_computed_tokens
        return self.page(group, int(blocks.table[group, index // SIZE]))[index % SIZE]

    def page(self, group: int, block: int) -> np.ndarray:
        """A page as this test lays it out: float32 [SIZE, numbers of a slot]."""
        spec = self.pool.classes[self.manager.classes[group]]
        offset = int(self.pool.offset[block])
        page = self.store.arena[offset : offset + spec.page_bytes].numpy()
        return page.view(np.float32).reshape(SIZE, -1)

    def verify_bytes(self, request: Request) -> None:
        """Whatever is stored for a request is what its own tokens wrote, in every group."""
        blocks = self.manager.requests[request.request_id]
        for group in range(len(self.manager.classes)):
            positions = blocks.positions(group).tolist()
            for page in range(-(-len(positions) // SIZE)):
                wanted = [
                    self.content(request, at) for at in positions[page * SIZE : (page + 1) * SIZE]
                ]
                slots = self.page(group, int(blocks.table[group, page]))[: len(wanted)]
                assert (slots.T == wanted).all(), "wrong bytes"

    def state(self) -> tuple[object, ...]:
        lists = [self.pool.linked_blocks(cls) for cls in range(len(self.pool.classes))]
        return (self.pool.ref_cnt.tolist(), lists, self.pool.cached.tolist(),
                self.pool.slab_class.tolist(), len(self.pool.index),
                {name: blocks.num_pages.tolist()
                 for name, blocks in self.manager.requests.items()})  # fmt: skip
