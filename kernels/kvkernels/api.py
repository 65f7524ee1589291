"""What both backends share: step tables, calibration, results, scratch buffers and timers."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kvkernels.layout import PageSpec

Rope = Literal["stored", "at_read"]
Mass = Literal["page", "token"] | None
RopeTable = tuple[Tensor, Tensor]  # cos, sin: [max_positions, head_dim / 2] fp32 each


@dataclass
class FormatState:
    """Calibration that the pages of one class share and that lies outside the pages.

    `k_scale`, `v_scale`: [num_layers] fp32, used by formats with `shared_scale` (value = code *
    scale). `saturated`: [1] int64, elements clamped by an encode so far.
    """

    k_scale: Tensor
    v_scale: Tensor
    saturated: Tensor

    @staticmethod
    def from_spec(spec: PageSpec, device: torch.device | str = "cpu") -> "FormatState":
        """Return the neutral calibration: every scale 1, nothing saturated."""
        return FormatState(
            torch.ones(spec.num_layers, dtype=torch.float32, device=device),
            torch.ones(spec.num_layers, dtype=torch.float32, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
        )


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

    Slot order is append order: the new slots are the last `new_lens[r]`, and query i sees the older
    slots and the new slots of tokens <= i.
    """

    page_offsets: np.ndarray
    kv_lens: np.ndarray
    q_lens: np.ndarray
    pos: np.ndarray | None = None
    log_count: np.ndarray | None = None
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
        query heads of a KV head, normalised over the slots of this class; only if asked.
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
