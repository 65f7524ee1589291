"""All blocks of the arena: slabs, reference counts and the free lists. No bytes are touched here.

    arena | slab 0: class A | slab 1: class B     | slab 2: unassigned | ...
          | page page page  | page page page page |                    |

A slab belongs to one page class and returns when its last page is empty. A block's id is
`slab * stride + index`. Blocks that no table holds are in the free list of their class.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from kvkernels.layout import PageSpec

from workbench.cache.block_state import UNASSIGNED, BlockState
from workbench.cache.eviction_order import RankedRows
from workbench.cache.free_list import FreeLists
from workbench.cache.lifetimes import Lifetimes
from workbench.cache.prefix_index import PrefixIndex, Row
from workbench.cache.victims import kept_last, next_victim, oldest_slab, spares_kept
from workbench.snapshot import NO_OWNER


class BlockPool(BlockState):
    """Owns every reference count. Ids are valid while their slab keeps its class.

    `before_evict(row)` runs while the row's bytes are still intact (to store them in a tier).
    """

    def __init__(
        self,
        *,
        num_slabs: int,
        slab_bytes: int,
        smallest_page_bytes: int,
        index: PrefixIndex,
        before_evict: Callable[[Row], object],
    ) -> None:
        super().__init__(num_slabs, slab_bytes // smallest_page_bytes)
        self.slab_bytes = slab_bytes
        self.index = index
        self.step = self.num_evicted_rows = 0
        self._before_evict = before_evict
        self._lists = FreeLists(num_slabs * self.stride)
        self.order_name = "lru"
        self.ranked: RankedRows | None = None  # None: the free lists' own order, LRU
        self.lifetimes: Lifetimes | None = None  # blocks that go last
        self.classes: list[PageSpec] = []
        self._slab_used = np.zeros(num_slabs, np.int32)  # pages referenced or cached
        self._slab_live = np.zeros(num_slabs, np.int32)  # pages referenced
        self._unassigned = list(range(num_slabs - 1, -1, -1))

    def class_of(self, spec: PageSpec) -> int:
        """Index of a page class, added when it is new."""
        if spec in self.classes:
            return self.classes.index(spec)
        if not 0 < spec.page_bytes <= self.slab_bytes:
            raise ValueError(f"a page of {spec.page_bytes} bytes does not fit a slab")
        self.classes.append(spec)
        self._lists.add_class()
        return len(self.classes) - 1

    def pages_per_slab(self, cls: int) -> int:
        """Pages of a class that fit one slab."""
        return min(self.stride, self.slab_bytes // self.classes[cls].page_bytes)

    @property
    def num_unassigned_slabs(self) -> int:
        """Slabs that belong to no class."""
        return len(self._unassigned)

    def _assign_slab(self, slab: int, cls: int) -> None:
        self._unassigned.remove(slab)
        self.slab_class[slab] = cls
        first = slab * self.stride
        page_bytes = self.classes[cls].page_bytes
        for index in reversed(range(self.pages_per_slab(cls))):
            self.offset[first + index] = slab * self.slab_bytes + index * page_bytes
            self._lists.link_first(cls, first + index)

    def _release_slab(self, slab: int) -> None:
        cls = int(self.slab_class[slab])
        first = slab * self.stride
        for block in range(first, first + self.pages_per_slab(cls)):
            self._lists.unlink(cls, block)
            self.offset[block] = -1
            self.owner[block] = NO_OWNER
        self.slab_class[slab] = UNASSIGNED
        self._unassigned.append(slab)

    # ---- allocation

    def num_free(self, cls: int) -> int:
        """Blocks of a class that could be taken now, evicting cached ones."""
        return self._lists.lengths[cls] + self.pages_per_slab(cls) * (
            len(self._unassigned) + len(self.reclaimable(cls))
        )

    def reclaimable(self, cls: int) -> np.ndarray:
        """Slabs of other classes that hold nothing but cached blocks."""
        other = (self.slab_class != cls) & (self.slab_class != UNASSIGNED) & (self._slab_live == 0)
        return np.flatnonzero(other)

    def can_allocate(self, needs: dict[int, int], revived: Iterable[int] = ()) -> bool:
        """Whether `needs` (class -> blocks) fit while `revived` cached blocks are kept.

        Revived blocks sit in the free lists and must not be counted twice (vLLM #11562).
        """
        kept = Counter(self.page_class(block) for block in revived if self.ref_cnt[block] == 0)
        slabs = len(self._unassigned)
        if len(needs) == 1 < len(self.classes) and not kept.keys() - needs.keys():
            slabs += len(self.reclaimable(next(iter(needs))))
        return slabs >= self._slabs_missing({cls: need + kept[cls] for cls, need in needs.items()})

    def _slabs_missing(self, needs: dict[int, int]) -> int:
        """Slabs that `needs` take besides what the free lists of their classes hold."""
        missing = {cls: max(0, need - self._lists.lengths[cls]) for cls, need in needs.items()}
        return sum(-(-blocks // self.pages_per_slab(cls)) for cls, blocks in missing.items())

    def allocate(self, wanted: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Take blocks for each (class, count), one reference each; `can_allocate` was asked first.

        A class with cached blocks of its own leaves the slabs that the pairs behind it need.
        """
        behind: Counter[int] = Counter()
        for cls, count in wanted:
            behind[cls] += count
        taken = []
        for cls, count in wanted:
            behind[cls] -= count
            others = {other: left for other, left in behind.items() if left and other != cls}
            taken.append([self._take_next(cls, others) for _ in range(count)])
        return taken

    def take(self, cls: int, block: int) -> int:
        """Take this very block, which holds nothing, with one reference; returns it."""
        if self.slab_class[block // self.stride] == UNASSIGNED:
            self._assign_slab(block // self.stride, cls)
        return self._take_linked(cls, block)

    def _take_next(self, cls: int, behind: dict[int, int]) -> int:
        block = self._lists.first(cls)
        if block is None or self.cached[block]:
            if len(self._unassigned) > self._slabs_missing(behind):
                self._assign_slab(self._unassigned[-1], cls)
            elif block is None or (not behind and spares_kept(self, cls)):
                self._reclaim_slab(cls)
            else:
                block = next_victim(self, cls, block)
                row = self.row_of[block]
                assert row is not None, f"block {block} is cached without a row"
                self.drop(row, keep=block)
                return self._take_linked(cls, block, was_used=True)
            block = self._lists.first(cls)
        assert block is not None, "a slab was assigned to the class"
        return self._take_linked(cls, block)

    def _take_linked(self, cls: int, block: int, was_used: bool = False) -> int:
        self._lists.unlink(cls, block)
        self.ref_cnt[block] = 1
        slab = block // self.stride
        self._slab_live[slab] += 1
        self._slab_used[slab] += not was_used
        self.generation[block] += 1
        self.last_used[block] = self.step
        self.mass[block] = 0.0
        return block

    def _reclaim_slab(self, cls: int) -> None:
        """Empty the least recently used slab of another class and give it to `cls`."""
        slabs = self.reclaimable(cls)
        if not len(slabs):
            raise RuntimeError("no block can be taken: can_allocate was not asked")
        slab = oldest_slab(self, slabs)
        first = slab * self.stride
        for block in range(first, first + self.pages_per_slab(int(self.slab_class[slab]))):
            row = self.row_of[block]
            if row is not None:
                self.drop(row)
        self._assign_slab(slab, cls)

    # ---- references

    def touch(self, block: int) -> None:
        """One more table holds the block (a prefix hit)."""
        if self.ref_cnt[block] == 0:
            self._lists.unlink(self.page_class(block), block)
            self._slab_live[block // self.stride] += 1
        self.ref_cnt[block] += 1
        self.last_used[block] = self.step
        if self.ranked is not None and self.cached[block]:
            self.ranked.hit(block)

    def use(self, row: Row) -> None:
        """A row was read (its beginning was copied): it counts as used now."""
        for block in row.blocks:
            self.touch(block)
        self.free(reversed(row.blocks))

    def free(self, blocks: Iterable[int]) -> None:
        """One table fewer holds each block; give tails first, so that they are evicted first."""
        for block in blocks:
            self._drop_reference(block)

    def pin(self, block: int) -> None:
        """Keep a block while a transfer reads or writes it."""
        self.touch(block)
        self.pins[block] += 1

    def unpin(self, block: int) -> None:
        """The transfer has ended."""
        if self.pins[block] <= 0:
            raise RuntimeError(f"block {block} is not pinned")
        self.pins[block] -= 1
        self._drop_reference(block)

    def _drop_reference(self, block: int) -> None:
        if self.ref_cnt[block] <= 0:
            raise RuntimeError(f"block {block} is freed twice")
        self.ref_cnt[block] -= 1
        if self.ref_cnt[block]:
            return
        self._slab_live[block // self.stride] -= 1
        if self.cached[block]:
            self._lists.link_last(self.page_class(block), block)
        else:
            self._empty(block)

    def _empty(self, block: int) -> None:
        """A block without reference and row goes to the head, or its whole slab goes back."""
        slab = block // self.stride
        self._lists.link_first(int(self.slab_class[slab]), block)
        self.owner[block], self.basis[block] = NO_OWNER, 0
        self._slab_used[slab] -= 1
        if self._slab_used[slab] == 0:
            self._release_slab(slab)

    # ---- rows

    def publish(self, row: Row) -> bool:
        """Make a complete row visible; False if an equal one is there already (no dedup)."""
        if self.index.get(row.key) is not None:
            return False
        for block in row.blocks:
            if self.row_of[block] is not None:
                raise RuntimeError(f"block {block} has a row already")
            self.row_of[block] = row
            self.cached[block] = True
        self.index.insert(row)
        if self.ranked is not None:
            self.ranked.inserted(row)
        return True

    def drop(self, row: Row, keep: int = -1) -> None:
        """Evict a row: offer its bytes to the tiers, then forget it."""
        self._before_evict(row)
        self.num_evicted_rows += 1
        self.forget(row, keep)

    def forget(self, row: Row, keep: int = -1) -> None:
        """Hide a row; its unreferenced blocks become empty, but `keep` stays linked and counted."""
        self.index.remove(row, self.step)
        if self.ranked is not None:
            self.ranked.removed(row)
        for member in row.blocks:
            self.row_of[member] = None
            self.cached[member] = False
            self.evicted_step[member] = self.step
            if member != keep and self.ref_cnt[member] == 0:
                self._lists.unlink(self.page_class(member), member)
                self._empty(member)

    def evict_all(self) -> None:
        """Forget every row. Nothing is stored in a tier."""
        for row in self.index.rows():
            self.forget(row)

    def drop_idle_rows(self) -> int:
        """Evict every row that no table holds; returns how many there were."""
        rows = [row for row in self.index.rows() if not self.ref_cnt[list(row.blocks)].any()]
        for row in rows:
            self.drop(row)
        return len(rows)

    def eviction_order(self, cls: int) -> list[int]:
        """Cached, unreferenced blocks of a class, next victim first."""
        if self.ranked is not None:
            return kept_last(self, self.ranked.walk(cls))
        return kept_last(self, [block for block in self.walk(cls) if self.cached[block]])

    def linked_blocks(self, cls: int) -> list[int]:
        """Every block in a class's free list, head first."""
        return list(self.walk(cls))

    def walk(self, cls: int) -> Iterator[int]:
        """The blocks of a class's free list one by one, head first."""
        return self._lists.walk(cls)
