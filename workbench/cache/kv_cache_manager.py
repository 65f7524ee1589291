"""Maps each request to its blocks; `free(request)` is the only way out."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from kvkernels.layout import PageSpec

from workbench.cache.block_pool import BlockPool
from workbench.cache.contiguous import take_runs
from workbench.cache.filling import ClassTables, Filling
from workbench.cache.geometry import Geometry, fitting_pages
from workbench.cache.keys import PrefixKey, tagged_key
from workbench.cache.prefix_index import Row
from workbench.cache.request_blocks import PrefixHit, RequestBlocks
from workbench.cache.request_keys import RequestKeys
from workbench.request import Request


class KVCacheManager:
    """The one owner of request -> blocks; `keys` says under which names they can be found."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        geometry: Geometry,
        classes: list[int],
        open_classes: list[int] | None = None,
        block_size: int,
        max_model_len: int,
        format_label: str,
        root_key: Callable[[Request], PrefixKey],
        contiguous: bool = False,
    ) -> None:
        self.pool = pool
        self.geometry = geometry
        self.classes = classes  # page class of each group's full pages
        self.open_classes = open_classes or classes  # and of pages that are being filled
        self.max_open_pages = 2  # of each group of one request, at any moment
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.keys = RequestKeys(root_key, block_size, format_label)
        self.min_new_tokens = 1  # what a hit leaves to compute: logits, and what retention observes
        self.contiguous = contiguous
        self._max_pages = -(-max_model_len // block_size) + 1
        self.requests: dict[str, RequestBlocks] = {}

    # ---- lookup

    def find_prefix(self, request: Request) -> PrefixHit:
        """Longest run of rows in HBM, all of one lineage, that leaves `min_new_tokens`."""
        most = self.most_hit_pages(request)
        best = PrefixHit((), self.keys.format_label, 0)
        chain = self.keys.chain(request)
        for lineage in self.keys.lineages:
            rows = []
            for chain_key in chain[:most]:
                row = self.pool.index.get(tagged_key(chain_key, lineage))
                if row is None:
                    break
                rows.append(row)
            if len(rows) * self.block_size > best.num_tokens:
                best = PrefixHit(tuple(rows), lineage, len(rows) * self.block_size)
        return best

    def most_hit_pages(self, request: Request) -> int:
        """Pages a hit may have at most (I12, decision 13)."""
        return max(0, request.num_tokens - self.min_new_tokens) // self.block_size

    # ---- allocation

    def num_pages_for(self, num_slots: int) -> int:
        """Pages one group needs for a number of slots."""
        return -(-num_slots // self.block_size)

    @property
    def capacity_pages(self) -> int:
        """Pages one request could have if it had the whole pool."""
        pool, besides = self.pool, Counter[PageSpec]()
        if self.seals:
            for cls in self.open_classes:
                besides[pool.classes[cls]] += self.max_open_pages
        specs = [pool.classes[cls] for cls in self.classes]
        return fitting_pages(specs, pool.slab_bytes, pool.num_slabs, besides)

    @property
    def seals(self) -> bool:
        """Whether a page changes its class when it is full (formats grouped along tokens)."""
        return self.open_classes != self.classes

    def blocks_held(self, request: Request) -> int:
        """Blocks in a request's tables."""
        blocks = self.requests.get(request.request_id)
        if blocks is None:
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

        `num_loaded_tokens`: how many of these arrive as full pages of a tier. `reserve_tokens`:
        more tokens that must fit besides (admission by the whole prompt), though their pages are
        not taken yet. `reserve_pages`: pages of each group that were promised to others. False
        changes nothing.
        """
        hit_blocks = [block for row in hit.rows for block in row.blocks]
        num_slots = hit.num_tokens + num_new_tokens
        wanted = self.num_pages_for(num_slots + reserve_tokens) - len(hit.rows)
        filled = Filling.of(num_loaded_tokens, 0, num_new_tokens, self.block_size)
        needs = self._needs([wanted + reserve_pages] * len(self.classes))
        for cls in needs:
            needs[cls] += watermark_blocks
        if self.seals:
            for cls in self.open_classes:
                needs[cls] = needs.get(cls, 0) + filled.num_open
        if not self.pool.can_allocate(needs, hit_blocks):
            return False
        blocks = self._new_blocks(lineage or hit.lineage)
        if self.contiguous:
            return self._admit_contiguous(request, blocks, num_slots + reserve_tokens)
        for block in hit_blocks:
            self.pool.touch(block)
        blocks.begin_with(hit.rows)
        self.requests[request.request_id] = blocks
        self._append_pages(request, blocks, [filled] * len(self.classes))
        blocks.number_slots(hit.num_tokens)
        return True

    def restore(
        self,
        request: Request,
        rows: list[Row | None],
        *,
        classes: np.ndarray,
        stored_len: np.ndarray,
        pos: np.ndarray,
        lineage: str,
        hashing: bool,
    ) -> bool:
        """Tables of a swapped request: shared rows again, fresh pages where `rows` is None.

        `classes` int [num_groups, pages]: of each page, -1 where a group has fewer. The caller then
        writes the fresh pages' bytes. False changes nothing.
        """
        wanted = [
            [int(cls) for cls, row in zip(line, rows, strict=True) if row is None and cls >= 0]
            for line in classes
        ]
        shared = [block for row in rows if row is not None for block in row.blocks]
        if not self.pool.can_allocate(Counter(itertools.chain(*wanted)), shared):
            return False
        blocks = self._new_blocks(lineage)
        for block in shared:
            self.pool.touch(block)
        taken = iter(self.pool.allocate([(cls, 1) for cls in itertools.chain(*wanted)]))
        for group, line in enumerate(classes):
            count = int((line >= 0).sum())
            for page, row in enumerate(rows[:count]):
                block = next(taken)[0] if row is None else row.blocks[group]
                blocks.table[group, page] = block
                self.pool.owner[block] = request.owner
            blocks.num_pages[group] = count
        blocks.stored_len[:] = stored_len
        blocks.pos[:, : pos.shape[1]] = pos
        blocks.hashing = hashing
        leading = next((at for at, row in enumerate(rows) if row is None), len(rows))
        blocks.num_hashed = leading
        self.requests[request.request_id] = blocks
        return True

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
        blocks, size = self.requests[request.request_id], self.block_size
        filling = [
            Filling.of(0, int(stored), num_new_tokens, size).minus(
                int(pages) - int(stored) // size, len(spares)
            )
            for stored, pages, spares in zip(
                blocks.stored_len, blocks.num_pages, blocks.spares, strict=True
            )
        ]
        if not any(each.num_open or (self.seals and each.num_sealed) for each in filling):
            return True
        needs: Counter[int] = Counter()
        for cls, open_cls, each in zip(self.classes, self.open_classes, filling, strict=True):
            needs[open_cls] += each.num_open
            needs[cls] += each.num_sealed if self.seals else 0
        if not self.pool.can_allocate(needs):
            return False
        self._append_pages(request, blocks, filling)
        blocks.number_slots(request.num_computed_tokens)
        return True

    def _needs(self, pages: Sequence[int]) -> dict[int, int]:
        """Pages of each class, from the full pages of each group."""
        needs: Counter[int] = Counter()
        for cls, count in zip(self.classes, pages, strict=True):
            needs[cls] += count
        return needs

    def _append_pages(
        self, request: Request, blocks: RequestBlocks, filling: Sequence[Filling]
    ) -> None:
        """Fresh pages for each group, and the spares that the full ones among them go to."""
        wanted = []
        for cls, open_cls, each in zip(self.classes, self.open_classes, filling, strict=True):
            spares = each.num_sealed if self.seals else 0
            wanted += [(cls, each.num_loaded), (open_cls, each.num_open), (cls, spares)]
        taken = self.pool.allocate(wanted)
        for group in range(len(self.classes)):
            loaded, fresh, spares_taken = taken[3 * group : 3 * group + 3]
            blocks.append(group, loaded + fresh)
            blocks.spares[group] += spares_taken
            self.pool.owner[loaded + fresh + spares_taken] = request.owner

    def _new_blocks(self, lineage: str) -> RequestBlocks:
        return RequestBlocks(len(self.classes), self._max_pages, self.block_size, lineage)

    # ---- progress

    def commit(self, request: Request, num_tokens: int) -> None:
        """Slots of `num_tokens` more tokens have been written."""
        blocks = self.requests[request.request_id]
        blocks.stored_len += num_tokens
        self.pool.last_used[blocks.all_blocks()] = self.pool.step

    def seal(self, request: Request, recode: Callable[[int, list[int], list[int]], None]) -> None:
        """Full pages go to their final class; `recode(group, from blocks, to blocks)` has bytes."""
        blocks = self.requests[request.request_id]
        for group, cls in enumerate(self.classes):
            full = int(blocks.stored_len[group]) // self.block_size
            table = blocks.table[group, :full]
            pages = np.flatnonzero(self.pool.page_classes(table) != cls)
            if not len(pages):
                continue
            old = [int(block) for block in table[pages]]
            new, blocks.spares[group] = (
                blocks.spares[group][: len(pages)],
                blocks.spares[group][len(pages) :],
            )
            recode(group, old, new)
            blocks.table[group, pages] = new
            self.pool.mass[new] = self.pool.mass[old]
            self.pool.free(old)

    def publish(self, request: Request, num_computed_tokens: int) -> int:
        """Offer full blocks to the index; returns how many became visible."""
        blocks = self.requests[request.request_id]
        if not blocks.hashing:
            return 0
        num_full = num_computed_tokens // self.block_size
        if num_full <= blocks.num_hashed:
            return 0
        chain = self.keys.chain(request)
        stored = 0
        for page in range(blocks.num_hashed, num_full):
            parent = chain[page - 1] if page else None
            tokens = request.token_ids[page * self.block_size : (page + 1) * self.block_size]
            row = Row(
                key=tagged_key(chain[page], blocks.lineage),
                parent_key=tagged_key(parent, blocks.lineage) if parent else None,
                blocks=tuple(int(block) for block in blocks.table[:, page]),
                token_ids=tuple(tokens),
                lineage=blocks.lineage,
                chain_key=chain[page],
            )
            stored += self.pool.publish(row)
        blocks.num_hashed = num_full
        return stored

    def rewind(self, request: Request) -> None:
        """Forget what is stored but keep the pages (`cache.mode = off`: recompute each step)."""
        blocks = self.requests[request.request_id]
        blocks.stored_len[:] = 0
        blocks.hashing = False
        blocks.number_slots(0)  # pages evicted so far left gaps

    def evict_pages(self, request: Request, group: int, pages: list[int]) -> int:
        """Take full pages out of one group's table (retention); returns how many were freed.

        Others that share such a page keep it; blocks computed from now on are never indexed.
        """
        blocks = self.requests[request.request_id]
        last_full = int(blocks.stored_len[group]) // self.block_size
        drop = sorted(set(pages))
        if drop and not 0 <= drop[0] <= drop[-1] < last_full:
            raise ValueError(f"pages {drop} are not all full pages of group {group}")
        victims = blocks.drop_pages(group, drop)
        blocks.hashing = False
        freed = sum(self.pool.ref_cnt[block] == 1 for block in victims)
        self.pool.free(victims)
        return int(freed)

    def keep_slots(
        self,
        request: Request,
        group: int,
        kept: np.ndarray,
        move: Callable[[list[int], np.ndarray, list[int]], None],
    ) -> int:
        """Keep only some slots of one group, packed into fewer pages; returns how many were freed.

        `kept` int ascending. `move(source blocks, slots among them, target blocks)` copies bytes.
        Pages in front of the first gap stay; shared and hashed ones behind it are copied, not
        changed. Without room for those copies nothing happens (0).
        """
        blocks = self.requests[request.request_id]
        gaps = np.flatnonzero(kept != np.arange(len(kept)))
        first = (int(gaps[0]) if len(gaps) else len(kept)) // self.block_size
        old = [int(block) for block in blocks.blocks(group)[first:]]
        num_new = -(-len(kept) // self.block_size) - first
        writable = [b for b in old if self.pool.ref_cnt[b] == 1 and not self.pool.cached[b]]
        target = writable[:num_new]
        missing = num_new - len(target)
        cls = self.classes[group]
        if num_new >= len(old) or not self.pool.can_allocate({cls: missing}):
            return 0
        (fresh,) = self.pool.allocate([(cls, missing)])
        self.pool.owner[fresh] = request.owner
        target += fresh
        move(old, kept[first * self.block_size :] - first * self.block_size, target)
        blocks.replace_tail(group, first, target, kept)
        blocks.number_slots(request.num_computed_tokens)
        blocks.hashing = False
        victims = [block for block in old if block not in set(target)]
        freed = sum(self.pool.ref_cnt[block] == 1 for block in victims) - missing
        self.pool.free(victims)
        return int(freed)

    def free(self, request: Request) -> None:
        """Give back every block; calling it for a request without tables does nothing."""
        blocks = self.requests.pop(request.request_id, None)
        if blocks is None:
            return
        for group in range(len(self.classes)):
            self.pool.free(reversed(blocks.held(group)))

    # ---- what a step needs

    def page_offsets(
        self, requests: list[Request], groups: tuple[int, ...], kv_lens: np.ndarray
    ) -> np.ndarray:
        """Byte offsets of the pages that hold `kv_lens` int [num_groups, R] slots.

        Returns int64 [num_groups, R, P], -1 = padding; pages reserved beyond are left out.
        """
        used = -(-kv_lens // self.block_size)
        width, chosen = int(used.max()), list(groups)
        out = np.empty((len(groups), len(requests), width), np.int64)
        for row, request in enumerate(requests):
            table = self.requests[request.request_id].table
            out[:, row] = self.pool.offset[table[chosen, :width]]
        out[np.arange(width) >= used[..., None]] = -1
        return out

    def class_tables(
        self, requests: list[Request], groups: tuple[int, ...], q_lens: np.ndarray
    ) -> list[ClassTables]:
        """The tables of a step, one for each page class among them; new tokens go to open pages."""
        kv_lens = self.stored_lens(requests, groups) + q_lens
        open_cls = self.open_classes[groups[0]]
        if not self.seals:
            return [ClassTables(open_cls, self.page_offsets(requests, groups, kv_lens), kv_lens)]
        size = self.block_size
        width = int(-(-kv_lens.max() // size))
        table = np.stack(
            [self.requests[r.request_id].table[list(groups), :width] for r in requests], 1
        )
        slots = np.clip(kv_lens[..., None] - size * np.arange(width), 0, size)  # [G, R, P]
        classes = np.where(slots > 0, self.pool.page_classes(table), -1)
        found = []
        for cls in np.unique(classes[classes >= 0]).tolist():
            mine = classes == cls
            count = mine.sum(-1)
            order = np.argsort(~mine, axis=-1, kind="stable")[..., : int(count.max())]
            offsets = self.pool.offset[np.take_along_axis(table, order, -1)]
            offsets[np.arange(offsets.shape[-1]) >= count[..., None]] = -1
            lens = (slots * mine).sum(-1).astype(np.int32)
            new = None if cls == open_cls else np.zeros(len(requests), np.int32)
            found.append(ClassTables(int(cls), offsets, lens, new))
        return found

    def stored_lens(self, requests: list[Request], groups: tuple[int, ...]) -> np.ndarray:
        """Stored slots before this step, int32 [num_groups, R]."""
        return np.stack(
            [self.requests[request.request_id].stored_len[list(groups)] for request in requests], 1
        )
