"""Maps each request to its blocks; `free(request)` is the only way out.

What a step reads is in `step_tables`, what takes tokens away in `eviction`, and what gives a full
page its final class in `sealing`.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.cache.block_pool import BlockPool
from workbench.cache.contiguous import take_runs
from workbench.cache.filling import Filling, FreshPages, GroupClasses, count_pages, num_sinks_among
from workbench.cache.geometry import Geometry, fitting_pages
from workbench.cache.keys import PrefixKey
from workbench.cache.lifetimes import Lifetimes
from workbench.cache.page_roles import PageRoles
from workbench.cache.page_store import PageStore
from workbench.cache.prefix_index import Row
from workbench.cache.prefix_lookup import PrefixLookup
from workbench.cache.request_blocks import PrefixHit, RequestBlocks
from workbench.cache.request_keys import RequestKeys
from workbench.clock import RealClock
from workbench.request import Request


class KVCacheManager:
    """The one owner of request -> blocks; `keys` says under which names they can be found."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        geometry: Geometry,
        roles: PageRoles,
        max_model_len: int,
        format_label: str,
        root_key: Callable[[Request], PrefixKey],
        contiguous: bool = False,
        store: PageStore | None = None,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self.pool = pool
        self.geometry = geometry
        self.roles = roles
        self.most_values_pages: int | None = None  # of one group each, whose V finds room below
        self.block_size = roles.block_size
        self.max_model_len = max_model_len
        self.keys = RequestKeys(root_key, self.block_size, format_label)
        self.lifetimes = Lifetimes(RealClock()) if lifetimes is None else lifetimes
        self.lookup = PrefixLookup(self.keys, self.block_size, self.lifetimes)
        self.contiguous = contiguous
        self.store = store  # copies the beginnings of blocks; without one there are no partial hits
        self.requests: dict[str, RequestBlocks] = {}

    @property
    def classes(self) -> list[int]:
        """Page class of each group's full pages."""
        return self.roles.full

    # ---- lookup

    def find_prefix(self, request: Request) -> PrefixHit:
        """Longest run of rows in HBM, all of one lineage, that leaves `lookup.min_new_tokens`."""
        goes_on = self.store is not None and not self.roles.seals  # sealed: never written again
        return self.lookup.find(self.pool.index, request, partial=goes_on)

    def most_hit_pages(self, request: Request) -> int:
        """Pages a hit may have at most (I12, decision 13)."""
        return self.lookup.most_hit_tokens(request) // self.block_size

    # ---- allocation

    def num_pages_for(self, num_slots: int) -> int:
        """Pages one group needs for a number of slots."""
        return -(-num_slots // self.block_size)

    @property
    def capacity_pages(self) -> int:
        """Pages one request could have if it had the whole pool."""
        pool, besides = self.pool, Counter[PageSpec]()
        for each in self.roles.of_groups():
            if each.full != each.open:
                besides[pool.classes[each.open]] += self.roles.max_open_pages
            if each.full != each.exact:
                besides[pool.classes[each.exact]] += self.roles.sink_pages
        specs = [pool.classes[each.full] for each in self.roles.of_groups()]
        most = fitting_pages(specs, pool.slab_bytes, pool.num_slabs, besides)
        return most if self.most_values_pages is None else min(most, self.most_values_pages)

    @property
    def short_of(self) -> str:
        """The setting that `capacity_pages` depends on first."""
        below = self.most_values_pages
        return "tiers.dram_mib" if below == self.capacity_pages else "cache.hbm_budget_mib"

    def blocks_held(self, request: Request) -> int:
        """Blocks in a request's tables."""
        if (blocks := self.requests.get(request.request_id)) is None:
            return 0
        return int(blocks.num_pages.sum()) + sum(map(len, blocks.spares))

    def fits_ever(self, num_slots: int) -> bool:
        """Whether a lone request of this size fits the empty arena."""
        return self.num_pages_for(num_slots) <= self.capacity_pages

    def pages_needed(self, request: Request, num_slots: int) -> int:
        """Pages of each group that a running request still has to take to store `num_slots`."""
        held = int(self.requests[request.request_id].num_pages.min())
        return max(0, self.num_pages_for(num_slots) - held)

    def admit(
        self,
        request: Request,
        hit: PrefixHit,
        num_new_tokens: int,
        *,
        num_loaded_tokens: int = 0,
        reserve_tokens: int = 0,
        reserve_pages: int = 0,
        watermark_blocks: int = 0,
        lineage: str | None = None,
    ) -> bool:
        """Give a request tables: hit rows, then fresh pages for `num_new_tokens`.

        The beginning of a block that is only partly hit is copied into the first fresh page.
        `num_loaded_tokens`: how many of these arrive as full pages of a tier. `reserve_tokens`:
        more tokens that must fit besides (admission by the whole prompt), though their pages are
        not taken yet. `reserve_pages`: pages of each group that were promised to others. False
        changes nothing.
        """
        hit_blocks = [block for row in hit.rows for block in row.blocks]
        num_slots = hit.num_tokens + num_new_tokens
        wanted = self.num_pages_for(num_slots + reserve_tokens) - len(hit.rows)
        num_fresh = hit.num_partial_tokens + num_new_tokens
        filled = Filling.of(
            num_loaded_tokens, 0, num_fresh, self.block_size, residual=self.roles.residual_pages,
            num_exact=num_sinks_among(len(hit.rows), wanted, self.roles.sink_pages),
            num_outliers=self.roles.outlier_pages,
        )  # fmt: skip
        needs = self.roles.needs(len(hit.rows), wanted, filled, reserve_pages)
        for cls in set(self.classes):
            needs[cls] += watermark_blocks
        if not self.pool.can_allocate(needs, hit_blocks):
            return False
        blocks = self.new_blocks(lineage or hit.lineage)
        if self.contiguous:
            return self._admit_contiguous(request, blocks, num_slots + reserve_tokens)
        copy = self._take_copy(hit.partial)  # now: its block may be evicted for this very request
        for block in hit_blocks:
            self.pool.touch(block)
        blocks.begin_with(hit.rows)
        self.requests[request.request_id] = blocks
        fresh = [each.fresh(len(hit.rows), filled) for each in self.roles.of_groups()]
        self._append_pages(request, blocks, fresh)
        blocks.number_slots(len(hit.rows) * self.block_size)
        if copy is not None and hit.partial is not None:
            self._put_copy(blocks, copy, hit)
        self.lookup.admitted(request, hit.num_tokens + num_loaded_tokens, len(hit.rows))
        return True

    def _take_copy(self, row: Row | None) -> list[Tensor] | None:
        """The bytes of a block of which only the beginning is hit."""
        if row is None or self.store is None:
            return None
        return self.store.lift(self.parts(row.blocks))

    def _put_copy(self, blocks: RequestBlocks, copy: list[Tensor], hit: PrefixHit) -> None:
        """Copy-on-write, at once: the next token is written behind what was copied."""
        assert self.store is not None and hit.partial is not None
        self.store.lay(self.parts(blocks.row_at(len(hit.rows))), copy)
        blocks.stored_len += hit.num_partial_tokens
        if self.pool.index.get(hit.partial.key) is hit.partial:
            self.pool.use(hit.partial)

    def parts(self, blocks: tuple[int, ...]) -> list[tuple[int, PageSpec]]:
        """(byte offset, spec) of each page of a row, for the page store; -1 is no page."""
        return [
            (int(self.pool.offset[block]), self.pool.classes[self.pool.page_class(block)])
            for block in blocks
            if block >= 0
        ]

    def _admit_contiguous(self, request: Request, blocks: RequestBlocks, num_slots: int) -> bool:
        """Reserve the maximum length as one run of adjacent pages a group."""
        runs = take_runs(self.pool, self.classes, self.num_pages_for(num_slots))
        if runs is None:
            return False
        for group, run in enumerate(runs):
            blocks.append(group, run)
            self.pool.owner[run] = request.owner
        blocks.hashing = False
        self.requests[request.request_id] = blocks
        blocks.number_slots(0)
        return True

    def grow(self, request: Request, num_new_tokens: int) -> bool:
        """Pages for more tokens of a running request; False changes nothing."""
        blocks = self.requests[request.request_id]
        wanted = [
            self._missing(request, blocks, group, each, num_new_tokens)
            for group, each in enumerate(self.roles.of_groups())
        ]
        needs = count_pages(wanted)
        if not any(needs.values()):
            return True
        if not self.pool.can_allocate(needs):
            return False
        self._append_pages(request, blocks, wanted)
        blocks.number_slots(request.num_computed_tokens)
        return True

    def _missing(
        self,
        request: Request,
        blocks: RequestBlocks,
        group: int,
        classes: GroupClasses,
        num_new_tokens: int,
    ) -> FreshPages:
        """Fresh pages of one group for more tokens, beside those it has taken already."""
        stored, size, roles = int(blocks.stored_len[group]), self.block_size, self.roles
        sinks, first = roles.num_sinks(blocks, group), 0
        if roles.sink_pages:  # the first fresh page's place in the text
            first = (request.num_computed_tokens - stored) // size + int(blocks.num_pages[group])
        waiting = 0
        if classes.full != classes.open:
            full = blocks.table[group, sinks : max(sinks, stored // size)]
            waiting = int((self.pool.page_classes(full) != classes.full).sum())
        filled = Filling.of(
            0, stored, num_new_tokens, size, residual=roles.residual_pages, num_waiting=waiting,
            num_exact=sinks + max(0, roles.sink_pages - first), num_outliers=roles.outlier_pages,
        )  # fmt: skip
        num_open = int(blocks.num_pages[group]) - stored // size
        return classes.fresh(first, filled.minus(num_open, len(blocks.spares[group])))

    def _append_pages(
        self, request: Request, blocks: RequestBlocks, wanted: Sequence[FreshPages]
    ) -> None:
        """Fresh pages for each group, and the spares that the full ones among them go to."""
        taken = iter(self.pool.allocate([pair for pages in wanted for pair in pages.pairs]))
        for group, pages in enumerate(wanted):
            fresh = [block for _ in pages.table for block in next(taken)]
            spares = next(taken)
            blocks.append(group, fresh)
            blocks.spares[group] += spares
            self.pool.owner[fresh + spares] = request.owner

    def new_blocks(self, lineage: str) -> RequestBlocks:
        """Empty tables, which belong to no request yet."""
        max_pages = -(-self.max_model_len // self.block_size) + 1
        blocks = RequestBlocks(len(self.classes), max_pages, self.block_size, lineage)
        blocks.hashing = not self.roles.own_basis  # its bytes are of no use to others
        return blocks

    # ---- progress

    def commit(self, request: Request, num_tokens: int) -> None:
        """Slots of `num_tokens` more tokens have been written."""
        blocks = self.requests[request.request_id]
        blocks.stored_len += num_tokens
        self.pool.last_used[blocks.all_blocks()] = self.pool.step

    def publish(self, request: Request, num_computed_tokens: int) -> int:
        """Offer full blocks to the index; returns how many became visible."""
        blocks = self.requests[request.request_id]
        num_full = self.roles.num_final_pages(num_computed_tokens)
        if not blocks.hashing or num_full <= blocks.num_hashed:
            return 0
        stored = 0
        for page in range(blocks.num_hashed, num_full):
            ids = tuple(int(block) for block in blocks.table[:, page])
            final = self.roles.final_row(page)
            if self.roles.seals and [*map(self.pool.page_class, ids)] != final:
                num_full = page  # it stays as it is: an outlier, or V found no room below
                break
            stored += self.pool.publish(self.keys.row(request, page, ids, blocks.lineage))
        blocks.num_hashed = num_full
        self.lookup.published(request, num_full)
        return stored

    def rewind(self, request: Request) -> None:
        """Forget what is stored but keep the pages (`cache.mode = off`: recompute each step)."""
        blocks = self.requests[request.request_id]
        blocks.stored_len[:] = 0
        blocks.hashing = False
        blocks.number_slots(0)  # pages evicted so far left gaps

    def free(self, request: Request) -> None:
        """Give back every block; calling it for a request without tables does nothing."""
        blocks = self.requests.pop(request.request_id, None)
        if blocks is None:
            return
        if blocks.basis and self.store is not None:
            del self.store.bases[blocks.basis]
        for group in range(len(self.classes)):
            self.pool.free(reversed(blocks.held(group)))
