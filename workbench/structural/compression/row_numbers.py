"""The numbers of a row of bf16 or fp32 pages, however its layers and heads are filed: out and in.

Pages are as `kvkernels.layout` describes them; plain formats have no metadata.
"""

from collections.abc import Iterator

import numpy as np

from workbench.cache.codec import RowPart

TYPES = ("bf16", "fp32")


def takes(parts: tuple[RowPart, ...], num_bytes: int) -> bool:
    """Whether these pages, of so many bytes together, hold each number of a row as bf16 or fp32."""
    specs = [part.spec for part in parts]
    if not specs or sum(spec.page_bytes for spec in specs) != num_bytes:
        return False
    if any(spec.k_format not in TYPES or spec.v_format not in TYPES for spec in specs):
        return False
    if len({(spec.block_size, spec.head_dim) for spec in specs}) > 1:
        return False
    layers, heads = extent(parts)
    covered = np.zeros((layers, heads), np.int64)
    for part in parts:
        covered[_place(part)] += 1
    return bool((covered == 1).all())


def extent(parts: tuple[RowPart, ...]) -> tuple[int, int]:
    """Layers and KV heads of a whole row."""
    return (
        max(part.first_layer + part.spec.num_layers for part in parts),
        max(part.first_head + part.spec.num_kv_heads for part in parts),
    )


def _place(part: RowPart) -> tuple[slice, slice]:
    spec = part.spec
    return (
        slice(part.first_layer, part.first_layer + spec.num_layers),
        slice(part.first_head, part.first_head + spec.num_kv_heads),
    )


def _planes(
    page: np.ndarray, parts: tuple[RowPart, ...]
) -> Iterator[tuple[RowPart, int, np.ndarray]]:
    """Each part's K and V as they lie, uint16 or fp32 [L, H, S, D] views of the row."""
    start = 0
    for part in parts:
        spec = part.spec
        shape = (spec.num_layers, spec.num_kv_heads, spec.block_size, spec.head_dim)
        layers = page[start : start + spec.page_bytes].reshape(spec.num_layers, spec.layer_bytes)
        start += spec.page_bytes
        places = ((spec.k_format, 0), (spec.v_format, spec.v_offset))
        for plane, (name, offset) in enumerate(places):
            kind = np.dtype(np.uint16 if name == "bf16" else np.float32)
            size = int(np.prod(shape[1:])) * kind.itemsize
            yield part, plane, layers[:, offset : offset + size].view(kind).reshape(shape)


def gather(page: np.ndarray, parts: tuple[RowPart, ...]) -> np.ndarray:
    """fp32 [2, L, S, C] of a row; channels are head by head."""
    layers, heads = extent(parts)
    spec = parts[0].spec
    values = np.empty((2, layers, spec.block_size, heads, spec.head_dim), np.float32)
    for part, plane, data in _planes(page, parts):
        wide = data if data.dtype == np.float32 else _widen(data)
        layer, head = _place(part)
        values[plane, layer, :, head] = wide.transpose(0, 2, 1, 3)
    return values.reshape(2, layers, spec.block_size, -1)


def scatter(values: np.ndarray, parts: tuple[RowPart, ...], page: np.ndarray) -> None:
    """Write fp32 [2, L, S, C] into a row; what lies between its numbers becomes zero."""
    spec = parts[0].spec
    split = values.reshape(*values.shape[:3], -1, spec.head_dim)
    page[:] = 0
    for part, plane, data in _planes(page, parts):
        layer, head = _place(part)
        chosen = np.ascontiguousarray(split[plane, layer, :, head].transpose(0, 2, 1, 3))
        data[:] = chosen if data.dtype == np.float32 else _narrow(chosen)


def _widen(bits: np.ndarray) -> np.ndarray:
    wide: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide


def _narrow(values: np.ndarray) -> np.ndarray:
    """fp32 to bf16 bits, ties to even."""
    bits = values.view(np.uint32)
    rounded: np.ndarray = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
