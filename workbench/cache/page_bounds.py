"""Bounds of the keys of full pages, by block, beside the arena.

A block's bounds are valid for one generation of it: whoever takes the block next, be it a tier's
load, a swap, a recode, a sealed or a copied page, finds them stale, and they are made from the
bytes again before anything is chosen by them. Whoever writes a block in place says so (`forget`).
"""

from types import ModuleType

import numpy as np
import torch
from kvkernels import bounds as torch_bounds
from kvkernels.api import RopeTable
from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.cache.block_pool import BlockPool
from workbench.cache.block_state import kind_parts
from workbench.cache.geometry import Geometry
from workbench.cache.page_store import PageStore


class PageBounds:
    """Least and largest number of every key channel of full pages; its bytes are `num_bytes`.

    With `landmarks` the mean key instead. `tensor`: bf16 [rows, layers, KV heads of a group, 2 (or
    1), D]; a page of any slab has a row. `cosines`, for landmarks with `outliers`: fp32 [rows,
    layers, KV heads], the least cosine of a key to the mean.
    """

    def __init__(
        self,
        pool: BlockPool,
        geometry: Geometry,
        store: PageStore,
        *,
        landmarks: bool = False,
        outliers: bool = False,
    ) -> None:
        self.pool, self.landmarks = pool, landmarks
        self.kernels = torch_bounds if landmarks else _kernels(store.device)
        self._store = store
        self._geometry = geometry
        self._per_slab = max(pool.pages_per_slab(cls) for cls in range(len(pool.classes)))
        widest = max(geometry.groups, key=lambda group: len(group.layers))
        spec = PageSpec(
            len(widest.layers), len(widest.kv_heads), geometry.head_dim,
            pool.classes[0].block_size, "bf16", "bf16",
        )  # fmt: skip
        rows = pool.num_slabs * self._per_slab
        more = {"num_vectors": 1} if landmarks else {}
        self.tensor: Tensor = self.kernels.make_bounds(rows, spec, store.device, **more)
        self.cosines: Tensor | None = None
        if landmarks and outliers:
            self.cosines = torch.empty(self.tensor.shape[:3], device=store.device)
        self._made = np.full(len(pool.generation), -1, np.int64)  # generation they are of
        self._first_layer = 0

    @property
    def kind(self) -> tuple[bool, bool]:
        """Whether landmarks are held instead of bounds, and whether what outliers are found by."""
        return self.landmarks, self.cosines is not None

    @property
    def buffers(self) -> list[Tensor]:
        """What its bytes lie in."""
        return [part for part in (self.tensor, self.cosines) if part is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return sum(part.untyped_storage().nbytes() for part in self.buffers)

    def page_bytes(self, group: int) -> int:
        """Bytes that a query reads of one page's bounds in one layer."""
        num_vectors = 1 if self.landmarks else 2
        heads = len(self._geometry.groups[group].kv_heads)
        cosine = 0 if self.cosines is None else self.cosines.itemsize
        return heads * (num_vectors * 2 * self._geometry.head_dim + cosine)

    def rows(self, blocks: np.ndarray) -> np.ndarray:
        """Where the bounds of blocks lie, int64 alike."""
        stride = self.pool.stride
        found: np.ndarray = (blocks // stride * self._per_slab + blocks % stride).astype(np.int64)
        return found

    def forget(self, blocks: list[int]) -> None:
        """Their bytes were changed in place."""
        self._made[blocks] = -1

    def stale(self, blocks: np.ndarray) -> np.ndarray:
        """bool alike: which have no valid bounds."""
        found: np.ndarray = self._made[blocks] != self.pool.generation[blocks]
        return found

    @property
    def first_layer(self) -> int:
        """The first layer that has bounds."""
        return self._first_layer

    def need_layers_from(self, first_layer: int) -> None:
        """Layers before it are read whole; if fewer are than so far, nothing made holds."""
        if first_layer < self._first_layer:
            self._made[:] = -1
        self._first_layer = first_layer

    def make(
        self,
        group: int,
        blocks: np.ndarray,
        layers: range,
        *,
        pos: np.ndarray | None = None,
        rope_table: RopeTable | None = None,
        keep: bool = True,
    ) -> None:
        """Compute the bounds of full pages from their bytes, in some layers of the group.

        `pos` int [n, S] with `rope_table`: keys are rotated to these positions. `keep`: all layers
        that are needed are among them, so they are valid from now on.
        """
        kinds = self.pool.page_kinds(blocks)
        more = {} if self.cosines is None else {"cosines": self.cosines}
        for kind in np.unique(kinds).tolist():
            mine, (cls, basis) = kinds == kind, kind_parts(kind)
            chosen, spec = blocks[mine], self.pool.classes[cls]
            self.kernels.update_bounds(
                self._store.arena,
                spec,
                self._on_device(self.pool.offset[chosen]),
                self._store.state(group, spec, basis),
                self.tensor,
                self._on_device(self.rows(chosen)),
                layers=layers,
                pos=None if pos is None else self._on_device(pos[mine]),
                rope_table=rope_table,
                **more,
            )
        if keep:
            self._made[blocks] = self.pool.generation[blocks]

    def differing(
        self,
        group: int,
        blocks: np.ndarray,
        layers: range,
        *,
        pos: np.ndarray | None = None,
        rope_table: RopeTable | None = None,
    ) -> np.ndarray:
        """Which of some full pages have bounds that are not those of their keys, int block ids.

        A product of another shape may round a decoded key otherwise: one step of bf16 is let pass,
        and what that is to the cosine with a short mean.
        """
        part = slice(layers.start, layers.stop)
        rows = self._on_device(self.rows(blocks))
        parts = [(self.tensor, 2**-6, 1e-3)]
        if self.cosines is not None:
            parts.append((self.cosines, 0.0, 2**-4))
        held = [each[rows].clone() for each, _, _ in parts]
        self.make(group, blocks, layers, pos=pos, rope_table=rope_table, keep=False)
        wrong = np.zeros(len(blocks), bool)
        for (each, rtol, atol), before in zip(parts, held, strict=True):
            right = each[rows, part].float()
            each[rows] = before
            near = torch.isclose(before[:, part].float(), right, rtol=rtol, atol=atol)
            wrong |= (~near).flatten(1).any(1).cpu().numpy()
        found: np.ndarray = blocks[wrong]
        return found

    def _on_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self._store.device)


def _kernels(device: str) -> ModuleType:
    if torch.device(device).type != "cuda":
        return torch_bounds
    from kvkernels import triton_bounds

    return triton_bounds
