"""The paged KV cache of one rank: its own layers and KV heads, in the engine's pages and kernels.

table: sequence -> page numbers in order; a page holds `block_size` tokens of all of the rank's
layers and heads.
"""

from collections.abc import Callable, Sequence

import numpy as np
from kvkernels.api import FormatState, StepTables
from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.cache.page_store import PageStore
from workbench.errors import CapacityError

LocalAttend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class RankCache:
    """Pages of one class in one arena; sequences take them as they grow and give them back."""

    def __init__(self, spec: PageSpec, num_pages: int, device: str = "cpu") -> None:
        self.spec = spec
        self._store = PageStore(num_pages * spec.page_bytes, device)
        self._state = FormatState.from_spec(spec, device)
        self._free = list(range(num_pages - 1, -1, -1))
        self._tables: dict[int, list[int]] = {}
        self._lens: dict[int, int] = {}

    @property
    def bytes_per_token(self) -> float:
        """Bytes that a token takes on this rank."""
        return self.spec.page_bytes / self.spec.block_size

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that sequences hold."""
        return sum(map(len, self._tables.values())) * self.spec.page_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the arena, as allocated."""
        return self._store.num_bytes

    def extend(self, sequence: int, count: int) -> None:
        """Make room for `count` more tokens; CapacityError changes nothing."""
        table = self._tables.get(sequence, [])
        length = self._lens.get(sequence, 0) + count
        missing = -(-length // self.spec.block_size) - len(table)
        if missing > len(self._free):
            raise CapacityError(
                f"sequence {sequence} needs {missing} more KV pages and {len(self._free)} are "
                "free: free a sequence, or give the group more kv_tokens"
            )
        self._tables[sequence] = table + [self._free.pop() for _ in range(missing)]
        self._lens[sequence] = length

    def free(self, sequence: int) -> None:
        """Give a sequence's pages back; twice is harmless."""
        self._free += reversed(self._tables.pop(sequence, []))
        self._lens.pop(sequence, None)

    def attention(self, sequences: Sequence[int], q_lens: Sequence[int]) -> LocalAttend:
        """What the decoder calls for each layer of these sequences' newest tokens.

        They must have room already. `layer` counts the rank's own layers.
        """
        if not sequences:
            return lambda layer, q, k, v: q.new_empty(0, q.shape[1] * q.shape[2])
        store, spec = self._store, self.spec
        width = max(len(self._tables[sequence]) for sequence in sequences)
        offsets = np.full((1, len(sequences), width), -1, np.int64)
        for row, sequence in enumerate(sequences):
            table = self._tables[sequence]
            offsets[0, row, : len(table)] = np.array(table, np.int64) * spec.page_bytes
        lens = np.array([[self._lens[sequence] for sequence in sequences]], np.int32)
        tables = StepTables(offsets, lens, np.array(q_lens, np.int32))
        plan = store.kernels.make_plan(spec, tables, store.device, scratch=store.scratch)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            store.kernels.write_kv(store.arena, plan, layer, k, v, self._state)
            result = store.kernels.attend(
                q, store.arena, plan, layer, softmax_scale=spec.head_dim**-0.5, state=self._state
            )
            out: Tensor = result.out
            return out

        return attend
