"""V of full pages whose K stays in HBM: entries of DRAM that nothing evicts, one a block.

A block's values are valid for one generation of it, as its bounds are. They go when the block is in
no table and no row any more (`sweep`): nobody has to tell. Every layer that is read is verified.
Source: ShadowKV (arXiv 2410.21465), which keeps low-rank K on the GPU and V in CPU memory.
"""

import numpy as np

from workbench.cache.block_pool import BlockPool
from workbench.cache.keys import PrivateKey
from workbench.cache.page_copy import slice_checksums
from workbench.spatial.hierarchy.entries import Entry, State
from workbench.spatial.hierarchy.flows import HBM
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.spatial.hierarchy.mover import G2


class ValuesBelow:
    """Owns which entry of DRAM holds the V of a block; the engine's thread only."""

    def __init__(self, pool: BlockPool, hierarchy: Hierarchy) -> None:
        self._pool, self._mover = pool, hierarchy.mover
        self._of: dict[int, tuple[int, Entry]] = {}  # block -> its generation then, and the entry
        self.lost: set[int] = set()  # blocks whose values turned out to be damaged

    @property
    def num_bytes(self) -> int:
        """Bytes of all values kept, of blocks that are gone too."""
        return sum(entry.page_bytes for _, entry in self._of.values())

    def blocks(self) -> list[int]:
        """Blocks with values."""
        return list(self._of)

    def has(self, block: int) -> bool:
        """Whether the values of a block as it is now are here."""
        found = self._of.get(block)
        return found is not None and found[0] == int(self._pool.generation[block])

    def put(self, block: int, page: np.ndarray, num_layers: int) -> bool:
        """Keep the V of a block, uint8 [bytes]; False if DRAM has no room without idle rows too."""
        generation = int(self._pool.generation[block])
        key = PrivateKey(f"values of block {block}", generation, 0, 0)
        self._drop(block)
        while True:
            entry = self._store(key, page, num_layers)
            if entry is not None:
                self._of[block] = generation, entry
                return True
            if not self._make_room():
                self._mover.counters[G2].num_dropped_stores += 1
                return False

    def _store(self, key: PrivateKey, page: np.ndarray, num_layers: int) -> Entry | None:
        mover = self._mover
        start_s = mover.clock.now_s()
        entry = mover.new_dram_entry(key, page.nbytes, slice_checksums(page, num_layers))
        if entry is None or entry.buffer is None:
            return None
        entry.buffer[:] = page
        mover.counters[G2].stored(page.nbytes, mover.clock.now_s() - start_s)
        mover.flows.moved(HBM, G2, page.nbytes)
        mover.dram.pin(entry)
        mover.kept[entry.generation] = entry
        mover.publish(G2, entry)
        return entry

    def _make_room(self) -> bool:
        """Give up values that nobody needs, then those of the row that is evicted next."""
        if self.sweep():
            return True
        pool = self._pool
        for cls in range(len(pool.classes)):
            for block in pool.eviction_order(cls):
                row = pool.row_of[block]
                if row is not None and any(member in self._of for member in row.blocks):
                    pool.drop(row)
                    return self.sweep() > 0
        return False

    def sweep(self) -> int:
        """Drop the values of blocks that are in no table and no row; returns how many."""
        pool, blocks = self._pool, np.array(list(self._of), np.int64)
        if not len(blocks):
            return 0
        generations = np.array([generation for generation, _ in self._of.values()])
        gone = pool.generation[blocks] != generations
        gone |= (pool.ref_cnt[blocks] == 0) & ~pool.cached[blocks]
        for block in blocks[gone].tolist():
            self._drop(block)
        return int(gone.sum())

    def clear(self) -> None:
        """Forget all values; their bytes are free."""
        for block in list(self._of):
            self._drop(block)

    def _drop(self, block: int) -> None:
        found = self._of.pop(block, None)
        if found is not None:
            entry = found[1]
            self._mover.dram.remove(entry)
            self._mover.kept.pop(entry.generation)
            self._mover.dram.unpin(entry)

    def read(self, blocks: np.ndarray, layer: int, out: np.ndarray) -> None:
        """Copy one layer's V of some blocks into uint8 [n, layer_bytes], verified.

        Values that are missing or damaged read as zeros, and the block is in `lost`.
        """
        mover, size, total = self._mover, out.shape[1], 0
        start_s = mover.clock.now_s()
        for row, block in enumerate(blocks.tolist()):
            found = self._of.get(block)
            part = None
            if found is not None and found[0] == int(self._pool.generation[block]):
                part = self._verified(found[1], layer, size)
            if part is None:
                out[row] = 0
                self.lost.add(block)
                continue
            out[row] = part
            total += size
        if total:
            mover.counters[G2].loaded(total, mover.clock.now_s() - start_s)
            mover.flows.moved(G2, HBM, total)

    def _verified(self, entry: Entry, layer: int, size: int) -> np.ndarray | None:
        if entry.state is not State.READY or entry.buffer is None:
            return None
        part = entry.buffer[layer * size : (layer + 1) * size]
        if slice_checksums(part, 1) != entry.checksums[layer : layer + 1]:
            self._mover.fault(G2, "corrupt", entry)
            return None
        return part
