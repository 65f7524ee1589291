"""The arena's bytes: the one place that reads or writes pages outside a kernel call."""

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
import torch
from kvkernels.api import FormatState, Scratch
from kvkernels.backend import select
from kvkernels.formats import PageFormat
from kvkernels.layout import PageSpec
from kvkernels.pages import decode_pages, encode_pages, plane_view
from torch import Tensor

from workbench.cache.device_copies import DeviceCopies
from workbench.cache.geometry import Group
from workbench.cache.page_copy import copy_verified, slice_checksums


class Calibrated(Protocol):
    """What was measured of a model, as page classes take it."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything measured."""

    def applies(self, fmt: PageFormat) -> bool:
        """Whether a format's bytes depend on it."""

    def state(
        self, spec: PageSpec, layers: Sequence[int], heads: Sequence[int], device: str
    ) -> FormatState:
        """The calibration of a page class for some layers and KV heads."""


class OwnBasis(Protocol):
    """The basis of one request's keys."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its tables."""

    def state(self, groups: tuple[int, ...], spec: PageSpec, shared: FormatState) -> FormatState:
        """The calibration of a page class with this basis in place of the shared one."""


class PageStore:
    """One uint8 arena on the device, its kernels, and the calibration of each group's format.

    A *row* on its way to a tier is the concatenation of its pages, one a group.
    """

    def __init__(
        self,
        num_bytes: int,
        device: str,
        groups: Sequence[Group] = (),
        calibration: Calibrated | None = None,
    ) -> None:
        self.device = device
        self.arena = _memory(num_bytes, device)
        self.kernels: ModuleType = select(device)
        self.scratch = Scratch(device)
        self._groups = groups
        self.calibration = calibration
        self._states: dict[tuple[tuple[int, ...], PageSpec], FormatState] = {}
        self.bases: dict[int, OwnBasis] = {}  # of requests, by number (`RequestBlocks.basis`)
        self._host = self.arena.numpy() if device == "cpu" else None
        self._copies = DeviceCopies(self.arena) if self.arena.is_cuda else None

    @property
    def num_bytes(self) -> int:
        """Bytes of the arena, as allocated."""
        return self.arena.untyped_storage().nbytes()

    def state(self, group: int, spec: PageSpec, basis: int = 0) -> FormatState:
        """Calibration of a group's format, for whole pages."""
        return self.step_state((group,), spec, basis)

    def step_state(self, groups: tuple[int, ...], spec: PageSpec, basis: int = 0) -> FormatState:
        """Calibration of a format for all KV heads of some groups with equal layers.

        Made at first use; neutral where nothing is calibrated. `basis`: that of one request.
        """
        if basis:
            return self.bases[basis].state(groups, spec, self.step_state(groups, spec))
        key = (groups, spec)
        if key not in self._states:
            with torch.inference_mode(False):  # its counter is written to in any mode
                self._states[key] = self._make_state(groups, spec)
        return self._states[key]

    def _make_state(self, groups: tuple[int, ...], spec: PageSpec) -> FormatState:
        if self.calibration is None:
            return FormatState.from_spec(spec, self.device, num_head_groups=len(groups))
        members = [self._groups[group] for group in groups]
        heads = [head for group in members for head in group.kv_heads]
        return self.calibration.state(spec, members[0].layers, heads, self.device)

    @property
    def calibration_bytes(self) -> int:
        """Bytes of all calibration in use, beside the pages."""
        shared = sum(state.num_bytes for state in self._states.values())
        return shared + sum(basis.num_bytes for basis in self.bases.values())

    @property
    def num_saturated(self) -> int:
        """Elements clamped by encoders so far (fp8)."""
        return sum(int(state.saturated.item()) for state in self._states.values())

    def read_row(self, parts: Sequence[tuple[int, PageSpec]]) -> np.ndarray:
        """Bytes of a row, uint8 [sum of page bytes]; `parts`: (byte offset, spec) of each page.

        On a CPU with one group this is a view of the arena: copy it before the next step.
        """
        pages = [self._read(offset, spec.page_bytes) for offset, spec in parts]
        return pages[0] if len(pages) == 1 else np.concatenate(pages)

    def write_row(self, parts: Sequence[tuple[int, PageSpec]], row: np.ndarray) -> None:
        """Write a row's bytes back; raises ValueError if the length differs.

        On a GPU `row` has to stay as it is until `settle`; so has what `write_pieces` writes.
        """
        if len(row) != sum(spec.page_bytes for _, spec in parts):
            raise ValueError(f"a row of {len(row)} bytes does not fit pages of {parts}")
        start = 0
        for offset, spec in parts:
            self._write(offset, row[start : start + spec.page_bytes])
            start += spec.page_bytes

    def write_verified(
        self, parts: Sequence[tuple[int, PageSpec]], row: np.ndarray, checksums: Sequence[int]
    ) -> bool:
        """Write a row's bytes back; whether its slices have these xxh3-64 (none: they have).

        Where they have not, what was written is of no use. One run on a CPU is hashed as it is
        copied.
        """
        place = self.place(parts) if checksums else None
        if place is not None:
            return copy_verified(row, place, checksums)
        if checksums and slice_checksums(row, len(checksums)) != tuple(checksums):
            return False
        self.write_row(parts, row)
        return True

    def place(self, parts: Sequence[tuple[int, PageSpec]]) -> np.ndarray | None:
        """Where a row lies, uint8 [bytes] to be written to; None but for one run on a CPU."""
        if self._host is None or len(parts) != 1:
            return None
        ((offset, spec),) = parts
        return self._host[offset : offset + spec.page_bytes]

    def write_pieces(self, places: Iterable[tuple[int, int]], data: np.ndarray) -> None:
        """Write uint8 bytes into the arena, one piece after another: (byte offset, bytes) each."""
        start = 0
        for offset, size in places:
            self._write(offset, data[start : start + size])
            start += size

    def settle(self) -> None:
        """Wait until all rows and pieces lie where they were written to."""
        if self._copies is not None:
            self._copies.settle()

    def lift(self, parts: Sequence[tuple[int, PageSpec]]) -> list[Tensor]:
        """Copies of pages on their device, uint8 [page_bytes] each, to `lay` down elsewhere."""
        return [self.arena[offset : offset + spec.page_bytes].clone() for offset, spec in parts]

    def lay(self, parts: Sequence[tuple[int, PageSpec]], pages: Sequence[Tensor]) -> None:
        """Write lifted pages; raises ValueError if a length differs."""
        for (offset, spec), page in zip(parts, pages, strict=True):
            if len(page) != spec.page_bytes:
                raise ValueError(f"a page of {len(page)} bytes does not fit {spec.label}")
            self.arena[offset : offset + spec.page_bytes].copy_(page)

    def _read(self, offset: int, size: int) -> np.ndarray:
        if self._host is not None:
            return self._host[offset : offset + size]
        if self._copies is not None:
            return self._copies.down(offset, size)
        page: np.ndarray = self.arena[offset : offset + size].cpu().numpy()
        return page

    def _write(self, offset: int, page: np.ndarray) -> None:
        if self._host is not None:
            self._host[offset : offset + len(page)] = page
        elif self._copies is not None:
            self._copies.up(offset, page)
        else:
            self.arena[offset : offset + len(page)].copy_(torch.from_numpy(page.copy()))

    def gather(self, offsets: np.ndarray, spec: PageSpec) -> Tensor:
        """Copies of pages, uint8 [n, page_bytes]."""
        out = torch.empty((len(offsets), spec.page_bytes), dtype=torch.uint8, device=self.device)
        if len(offsets):
            self.kernels.gather_pages(self.arena, spec, self._index(offsets), out)
        return out

    def compact(
        self, spec: PageSpec, src_offsets: np.ndarray, slots: np.ndarray, dst_offsets: np.ndarray
    ) -> None:
        """Copy single slots of some pages, in order, into the first slots of others.

        `slots` int [k] counts slots through the source pages one after another. Source and target
        may overlap: everything is read first.
        """
        old = self.gather(src_offsets, spec)
        new = torch.zeros(
            (len(dst_offsets), spec.page_bytes), dtype=torch.uint8, device=self.device
        )
        picked = self._index(slots)
        for plane in ("k", "v"):
            pairs = zip(plane_view(old, spec, plane), plane_view(new, spec, plane), strict=True)
            for number, (source, target) in enumerate(pairs):
                if source is None or target is None:
                    continue
                axis = 3 + number  # data [n, L, H, S, row], metadata [n, L, H, M, S]
                flat = source.movedim(axis, 1).flatten(0, 1)[picked]  # [k, L, H, ...]
                at = torch.arange(len(picked), device=self.device)
                place = at // spec.block_size, at % spec.block_size
                target.movedim(axis, 1)[place] = flat
        self.kernels.scatter_pages(self.arena, spec, self._index(dst_offsets), new)

    def vectors(
        self, group: int, offsets: np.ndarray, spec: PageSpec, plane: str, basis: int = 0
    ) -> Tensor:
        """One plane of pages, decoded: fp32 [n * S, L, H, D], slot by slot."""
        return self.decode(group, self.gather(offsets, spec), spec, plane, basis)

    def decode(
        self, group: int, pages: Tensor, spec: PageSpec, plane: str, basis: int = 0
    ) -> Tensor:
        """One plane of pages uint8 [n, page_bytes]: fp32 [n * S, L, H, D], slot by slot."""
        state = self.state(group, spec, basis)
        decoded = decode_pages(pages, spec, plane, state)  # [n, L, H, S, D]
        return decoded.movedim(3, 1).flatten(0, 1)

    def write_values(self, group: int, offsets: np.ndarray, spec: PageSpec, values: Tensor) -> None:
        """Encode V fp32 [k, L, H, D] into the first slots of pages; what is behind them becomes 0.

        K stays as it is.
        """
        pages = self.gather(offsets, spec)
        shape = (len(offsets) * spec.block_size, *values.shape[1:])
        padded = torch.zeros(shape, device=self.device)
        padded[: len(values)] = values
        slots = padded.unflatten(0, (len(offsets), spec.block_size)).movedim(1, 3)
        encode_pages(pages, spec, "v", self.state(group, spec), slots)
        self.kernels.scatter_pages(self.arena, spec, self._index(offsets), pages)

    def recode(
        self,
        group: int,
        pages: Tensor,  # uint8 [n, page_bytes of src]
        src: PageSpec,
        dst: PageSpec,
        dst_offsets: np.ndarray,
        num_slots: np.ndarray,
        basis: int = 0,
    ) -> None:
        """Re-encode gathered pages into new places in the arena; `num_slots`: written slots.

        `basis`: of the keys in their new places.
        """
        starts = np.arange(len(dst_offsets), dtype=np.int64) * src.page_bytes
        self.kernels.recode_pages(
            self.arena,
            src,
            self._index(starts),
            self.state(group, src),
            dst,
            self._index(dst_offsets),
            self.state(group, dst, basis),
            self.scratch,
            source=pages.reshape(-1),
            num_slots=self._index(num_slots),
        )

    def encode(
        self, group: int, pages: Tensor, src: PageSpec, dst: PageSpec, basis: int = 0
    ) -> Tensor:
        """Full pages of one class, uint8 [n, page_bytes], as pages of another beside the arena."""
        if src == dst:
            return pages
        count = len(pages)
        out = torch.empty((count, dst.page_bytes), dtype=torch.uint8, device=self.device)
        places = [np.arange(count, dtype=np.int64) * spec.page_bytes for spec in (src, dst)]
        self.kernels.recode_pages(
            out.view(-1),
            src,
            self._index(places[0]),
            self.state(group, src),
            dst,
            self._index(places[1]),
            self.state(group, dst, basis),
            self.scratch,
            source=pages.reshape(-1),
        )
        return out

    def put(self, offsets: np.ndarray, spec: PageSpec, pages: Tensor) -> None:
        """Write whole pages, uint8 [n, page_bytes], into the arena."""
        if len(offsets):
            self.kernels.scatter_pages(self.arena, spec, self._index(offsets), pages)

    def _index(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self.device)


def _memory(num_bytes: int, device: str) -> Tensor:
    """Memory of a device; on a CPU at a multiple of 4096, so that a disk can read into it."""
    if device != "cpu":
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)
    whole = np.empty(num_bytes + 4095, np.uint8)
    start = -whole.ctypes.data % 4096
    return torch.from_numpy(whole[start : start + num_bytes])
