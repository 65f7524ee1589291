"""What both backends share: step tables, calibration, results, scratch buffers and timers."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kvkernels.formats import PageFormat
from kvkernels.layout import PageSpec

Rope = Literal["stored", "at_read"]
Mass = Literal["page", "token"] | None
RopeTable = tuple[Tensor, Tensor]  # cos, sin: [max_positions, head_dim / 2] fp32 each


@dataclass
class FormatState:
    """Calibration that the pages of one class share and that lies outside the pages.

    `k_scale`, `v_scale`: [num_layers] fp32, of formats whose shared scale is one a layer (value =
    code * scale). `k_head_scale`, `v_head_scale`: [num_layers, heads] fp32, of formats with one a
    layer and KV head; `heads` are all KV heads that one attend covers, or 1 for all alike.
    `saturated`: [1] int64, elements clamped by an encode so far. `k_table`, `v_table`: fp32
    [num_layers, heads, W] of formats with a calibration table, W as the format says, else empty.
    """

    k_scale: Tensor
    v_scale: Tensor
    saturated: Tensor
    k_head_scale: Tensor
    v_head_scale: Tensor
    k_table: Tensor = field(default_factory=lambda: torch.empty(0))
    v_table: Tensor = field(default_factory=lambda: torch.empty(0))

    @staticmethod
    def from_spec(
        spec: PageSpec, device: torch.device | str = "cpu", *, num_head_groups: int = 1
    ) -> "FormatState":
        """Return the neutral calibration: every scale 1, nothing saturated."""
        heads = num_head_groups * spec.num_kv_heads

        def ones(*shape: int) -> Tensor:
            return torch.ones(shape, dtype=torch.float32, device=device)

        def table(fmt: PageFormat) -> Tensor:
            if fmt.shared != "table":
                return torch.empty(0, device=device)
            neutral = fmt.neutral_table(spec.head_dim).to(device)
            joined = len(neutral) if neutral.dim() > 1 else 1
            return neutral.repeat(spec.num_layers, heads // joined, 1)

        layers = spec.num_layers
        return FormatState(
            ones(layers),
            ones(layers),
            torch.zeros(1, dtype=torch.int64, device=device),
            ones(layers, heads),
            ones(layers, heads),
            table(spec.k),
            table(spec.v),
        )

    def page_scale(self, spec: PageSpec, plane: str) -> Tensor | float:
        """The shared scale of a plane, [num_layers, KV heads or 1, 1, 1], or 1.0 without one.

        A table comes as [num_layers, KV heads, 1, W].

        Raises ValueError when there are scales of other heads than the page's.
        """
        key = plane == "k"
        shared = (spec.k if key else spec.v).shared
        if shared == "head":
            scale = self.k_head_scale if key else self.v_head_scale
            if scale.shape[1] not in (1, spec.num_kv_heads):
                raise ValueError(
                    f"{plane}_head_scale has {scale.shape[1]} heads, but a page holds "
                    f"{spec.num_kv_heads}"
                )
            return scale[:, :, None, None]
        if shared == "table":
            table = self.k_table if key else self.v_table
            if table.shape[1] != spec.num_kv_heads:
                raise ValueError(
                    f"{plane}_table has {table.shape[1]} heads, but a page holds "
                    f"{spec.num_kv_heads}"
                )
            return table[:, :, None]
        if shared == "tensor":
            return (self.k_scale if key else self.v_scale).view(-1, 1, 1, 1)
        return 1.0

    def head_table(self, plane: str, layer: int, num_heads: int) -> Tensor:
        """Table of each of `num_heads` KV heads, [num_heads, W]; ValueError on other counts."""
        table = (self.k_table if plane == "k" else self.v_table)[layer]
        if len(table) != num_heads:
            raise ValueError(
                f"{plane}_table has {len(table)} heads, but this step covers {num_heads}"
            )
        return table

    def of_layer(self, layer: int) -> "FormatState":
        """The calibration of one layer, as views: of pages that hold this layer alone."""
        one = slice(layer, layer + 1)
        return FormatState(
            self.k_scale[one],
            self.v_scale[one],
            self.saturated,
            self.k_head_scale[one],
            self.v_head_scale[one],
            self.k_table[one],
            self.v_table[one],
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all calibration."""
        parts = (self.k_scale, self.v_scale, self.k_head_scale, self.v_head_scale)
        return sum(part.nbytes for part in (*parts, self.k_table, self.v_table))

    def head_scale(self, plane: str, layer: int, num_heads: int) -> Tensor:
        """Scale of each of `num_heads` KV heads, [num_heads]; raises ValueError on other counts."""
        scale = (self.k_head_scale if plane == "k" else self.v_head_scale)[layer]
        if scale.numel() not in (1, num_heads):
            raise ValueError(
                f"{plane}_head_scale has {scale.numel()} heads, but this step covers {num_heads}"
            )
        return scale.expand(num_heads)


@dataclass(frozen=True)
class StepTables:
    """Which pages each request of a step reads, on the host; one for a layer set and page class.

    Head group g holds the KV heads [g * h, (g + 1) * h), h = `spec.num_kv_heads`; with model
    grouping there is one. R requests, P pages at most, S slots a page, N query rows in all.

    page_offsets: int64 [num_head_groups, R, P], byte offset of a page, -1 = padding at the end.
    kv_lens: int32 [num_head_groups, R], stored slots of this class after this step's write.
    q_lens: int32 [R], query rows of each request, 1 or more; query rows lie in request order.
    pos: int32 [num_head_groups, R, P * S], position of each slot (needed by rope="at_read").
    log_count: fp32, same shape, added to each slot's score (slots that stand for several keys).
    query_pos: int32 [N]; with rope="at_read" the queries are rotated too, else they come rotated.
    new_lens: int32 [R], how many of the step's tokens this class receives (default all: q_lens);
        0 for a class that only holds older slots.
    new_starts: int32 [R], index of the first of them among the request's query rows (default 0).

    page_offsets, pos and log_count may be tensors on the device, of pages that a kernel chose, and
    kv_lens too where it depends on which; then nothing is written (new_lens 0).

    Slot order is append order: the new slots are the last `new_lens[r]`, and query i sees the older
    slots and the new slots of tokens <= i.
    """

    page_offsets: np.ndarray | Tensor
    kv_lens: np.ndarray | Tensor
    q_lens: np.ndarray
    pos: np.ndarray | Tensor | None = None
    log_count: np.ndarray | Tensor | None = None
    query_pos: np.ndarray | None = None
    new_lens: np.ndarray | None = None
    new_starts: np.ndarray | None = None


@dataclass(frozen=True)
class AttentionResult:
    """Attention over one page class.

    out: [N, Hq * D] in the dtype of q, normalised over the slots of this class.
    lse: [N, Hq] fp32, natural log of the sum of exp(score); -inf where no slot is visible; only
        with `partial`.
    mass: [R, Hkv, P] or [R, Hkv, P * S] fp32, attention summed over the step's query rows and the
        query heads of a KV head, normalised over the slots of this class; only if asked. With
        `each_head` the query heads are apart: Hq in place of Hkv.
    """

    out: Tensor
    lse: Tensor | None = None
    mass: Tensor | None = None


@dataclass
class Scratch:
    """Reusable named buffers, so that the memory of a step is known and counted."""

    device: torch.device | str = "cpu"
    _buffers: dict[str, Tensor] = field(default_factory=dict)
    _views: dict[tuple[torch.dtype, int, int], Tensor] = field(default_factory=dict)
    _arena: tuple[int, int] = (0, 0)

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor; it is valid until the next call with this name."""
        numel = 1
        for size in shape:
            numel *= size
        size_bytes = numel * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size_bytes:
            size = (
                -(-size_bytes * 5 // 4 // 4096) * 4096
            )  # a growing context must not realloc often
            buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
            self._buffers[name] = buffer
        return buffer[:size_bytes].view(dtype).view(shape)

    def chunks(self, arena: Tensor, dtype: torch.dtype, start: int, width: int) -> Tensor:
        """View the arena from byte `start` as overlapping rows of `width`, one per element.

        The views of one arena are remembered, because making one costs as much as using it.
        """
        identity = (arena.data_ptr(), arena.numel())
        if identity != self._arena:
            self._views.clear()
            self._arena = identity
        key = (dtype, start, width)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = chunk_view(arena, dtype, start, width)
        return view

    @property
    def buffers(self) -> list[Tensor]:
        """All buffers, uint8."""
        return list(self._buffers.values())

    @property
    def bytes(self) -> int:
        """Bytes held by all buffers."""
        return sum(buffer.numel() for buffer in self._buffers.values())

    def release(self) -> None:
        """Give every buffer back."""
        self._buffers.clear()
        self._views.clear()
        self._arena = (0, 0)


def chunk_view(arena: Tensor, dtype: torch.dtype, start: int, width: int) -> Tensor:
    """View the arena from byte `start` as overlapping rows of `width` elements, one per element."""
    typed = arena.view(dtype)
    first = start // dtype.itemsize
    count = typed.numel() - first - width + 1
    return typed.as_strided((count, width), (1, 1), typed.storage_offset() + first)


@dataclass
class Timers:
    """Seconds spent in the parts of attention since the last `reset` (CPU reference only)."""

    gather_s: float = 0.0
    dequant_s: float = 0.0
    attention_s: float = 0.0

    def reset(self) -> None:
        """Set all sums to zero."""
        self.gather_s = self.dequant_s = self.attention_s = 0.0
