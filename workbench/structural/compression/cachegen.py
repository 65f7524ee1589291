"""CacheGen: rows quantised as differences to anchor tokens, then entropy coded. Lossy.

    token      0   1   2  ...  9 | 10  11 ...            every tenth is an anchor
    coded as   8 bit  d   d    d | 8 bit  d ...          d: difference to the anchor as decoded
    symbols  ──► a probability table of (plane, layer, class of channels) ──► range coder

A vector has one fp16 scale. Differences get 32 levels in the first layers, which matter more, and
16 in the others, as LMCache's. Groups never cross a page. Takes pages of bf16 and fp32 numbers. The
payload names its shapes and its tables; a foreign or damaged one is refused. Where other processes
read too, the tables are those that every process knows: blobs are 3 % larger (3.81 bits a number,
not 3.71, over 52 pages of the default model) and need nothing beside them. Sources: CacheGen (arXiv
2310.07240), LMCache's `cachegen_basics`; range coder: `constriction`.
"""

import struct

import constriction
import numpy as np
from kvkernels.layout import PageSpec

from workbench.cache.codec import CodecFault, RowPart
from workbench.structural.compression.cachegen_tables import ANCHOR_LEVELS, Symbols, Tables
from workbench.structural.compression.row_numbers import TYPES, extent, gather, scatter, takes

ANCHOR_EVERY = 10
FINE, COARSE = 15, 7  # largest symbol with 32 and with 16 bins
FINE_KEYS, FINE_VALUES = 10 / 32, 2 / 32  # share of layers with fine bins
FIT_ROWS = 8  # rows that the tables are found from
MAGIC = b"CGN1"
_HEAD = struct.Struct("<4sHHHHHQ")  # magic, parts, layers, KV heads, slots, head size, tables
_PART = struct.Struct("<HHHHBB")  # first layer, layers, first head, heads, K and V type
_SMALL, _LARGE = 2.0**-24, 65504.0


class CacheGen:
    """Anchors, differences and a range coder; its tables are found from the first rows."""

    name = "cachegen"
    number = 2
    numerics = "cachegen"
    alone = True

    def __init__(self) -> None:
        self._tables: dict[int, Tables] = {}  # by fingerprint: blobs of older ones stay readable
        self._known: dict[tuple[int, int], Tables] = {}
        self._newest: dict[tuple[int, int], Tables] = {}  # by layers and channels
        self._seen: dict[tuple[int, int], list[Symbols]] = {}

    @property
    def shared_bytes(self) -> int:
        """Bytes of all probability tables."""
        return sum(tables.num_bytes for tables in list(self._tables.values()))

    def encode(
        self, page: np.ndarray, parts: tuple[RowPart, ...] | None = None
    ) -> tuple[bytes, int]:
        """A row of pages to (payload, 0); CodecFault for one that is not of bf16 or fp32."""
        if parts is None or not takes(parts, page.nbytes):
            raise CodecFault("not_coded")
        values = gather(page, parts)  # fp32 [2, L, S, C]
        symbols, scales = quantise(values)
        tables = self._tables_for(symbols)
        first = parts[0].spec
        head = _HEAD.pack(
            MAGIC, len(parts), values.shape[1], values.shape[3] // first.head_dim,
            first.block_size, first.head_dim, tables.fingerprint,
        )  # fmt: skip
        listed = b"".join(
            _PART.pack(
                part.first_layer, part.spec.num_layers, part.first_head, part.spec.num_kv_heads,
                TYPES.index(part.spec.k_format), TYPES.index(part.spec.v_format),
            )
            for part in parts
        )  # fmt: skip
        return head + listed + scales.tobytes() + _code(symbols, tables), 0

    def decode(self, payload: memoryview, planes: int, page: np.ndarray) -> None:
        """Fill uint8 [page_bytes] from a payload; CodecFault if it does not fit."""
        shape, parts, fingerprint, rest = _read_head(payload)
        if not takes(parts, page.nbytes):
            raise CodecFault("corrupt")
        tables = self._tables.get(fingerprint) or self._neutral((shape[1], shape[3]))
        if tables.fingerprint != fingerprint:
            raise CodecFault("foreign")
        if tables.classes.shape != (2, shape[1], shape[3]):
            raise CodecFault("foreign")
        size = int(np.prod(shape[:3])) * 2
        if len(rest) < size or (len(rest) - size) % 4:
            raise CodecFault("corrupt")
        scales = np.frombuffer(rest[:size], np.float16).reshape(shape[:3])
        if not np.isfinite(scales).all():
            raise CodecFault("corrupt")
        words = np.frombuffer(rest[size:], np.uint32)
        scatter(restore(_uncode(words, tables, shape), scales), parts, page)

    def _tables_for(self, symbols: Symbols) -> Tables:
        """The tables of rows of this shape; found again once enough rows were seen."""
        shape = symbols.deltas.shape[1], symbols.deltas.shape[3]
        if not self.alone:
            return self._neutral(shape)
        levels = largest_symbols(shape[0])
        newest = self._newest.get(shape)
        if newest is None:
            newest = self._newest[shape] = self._neutral(shape)
            self._seen[shape] = []
        seen = self._seen.get(shape)
        if seen is not None:
            seen.append(symbols)
            if len(seen) == FIT_ROWS:
                newest = self._keep(shape, Tables.fit(seen, levels))
                del self._seen[shape]
        return newest

    def _neutral(self, shape: tuple[int, int]) -> Tables:
        """What any process has for rows of this many layers and channels."""
        if shape not in self._known:
            tables = Tables.neutral(largest_symbols(shape[0]), shape[1])
            self._known[shape] = self._tables[tables.fingerprint] = tables
        return self._known[shape]

    def _keep(self, shape: tuple[int, int], tables: Tables) -> Tables:
        self._newest[shape] = self._tables[tables.fingerprint] = tables
        return tables


def largest_symbols(num_layers: int) -> np.ndarray:
    """The largest symbol of K and V of each layer, int [2, L]: layer-wise bins."""
    layer = np.arange(num_layers)
    return np.stack(
        [np.where(layer < np.ceil(num_layers * share), FINE, COARSE)
         for share in (FINE_KEYS, FINE_VALUES)]
    )  # fmt: skip


def quantise(values: np.ndarray) -> tuple[Symbols, np.ndarray]:
    """Symbols and scales fp16 [2, L, S] of vectors fp32 [2, L, S, C]."""
    values = np.nan_to_num(values, nan=0.0, posinf=_LARGE, neginf=-_LARGE)
    tokens = np.arange(values.shape[2])
    is_anchor = tokens % ANCHOR_EVERY == 0
    of = tokens // ANCHOR_EVERY  # which anchor each token has
    scales = np.empty(values.shape[:3], np.float16)
    scales[:, :, is_anchor] = _scale(values[:, :, is_anchor], np.float32(ANCHOR_LEVELS))
    anchors = _round(values[:, :, is_anchor], scales[:, :, is_anchor], np.float32(ANCHOR_LEVELS))
    exact = anchors * scales[:, :, is_anchor, None].astype(np.float32)
    deltas = values[:, :, ~is_anchor] - exact[:, :, of[~is_anchor]]
    most = largest_symbols(values.shape[1])[:, :, None, None].astype(np.float32)
    scales[:, :, ~is_anchor] = _scale(deltas, most)
    return Symbols(anchors, _round(deltas, scales[:, :, ~is_anchor], most)), scales


def restore(symbols: Symbols, scales: np.ndarray) -> np.ndarray:
    """Vectors fp32 [2, L, S, C] of symbols and scales: the inverse of `quantise`."""
    tokens = np.arange(scales.shape[2])
    is_anchor = tokens % ANCHOR_EVERY == 0
    wide = scales.astype(np.float32)[..., None]
    values = np.empty((*scales.shape, symbols.anchors.shape[3]), np.float32)
    exact = symbols.anchors * wide[:, :, is_anchor]
    values[:, :, is_anchor] = exact
    deltas = symbols.deltas * wide[:, :, ~is_anchor]
    values[:, :, ~is_anchor] = deltas + exact[:, :, tokens[~is_anchor] // ANCHOR_EVERY]
    return values


def _scale(values: np.ndarray, most: np.ndarray | np.float32) -> np.ndarray:
    top = np.abs(values).max(-1, keepdims=True) / most
    return np.clip(top[..., 0], _SMALL, _LARGE).astype(np.float16)


def _round(values: np.ndarray, scales: np.ndarray, most: np.ndarray | np.float32) -> np.ndarray:
    codes = np.rint(values / scales.astype(np.float32)[..., None])
    rounded: np.ndarray = np.clip(codes, -most, most).astype(np.int8)
    return rounded


def _code(symbols: Symbols, tables: Tables) -> bytes:
    encoder = constriction.stream.queue.RangeEncoder()
    top = tables.deltas.shape[-1] // 2
    for (plane, layer, _, channels), models in zip(tables.members, tables.models, strict=True):
        for values, model, offset in zip(
            (symbols.anchors, symbols.deltas), models, (ANCHOR_LEVELS, top), strict=True
        ):
            chosen = values[plane, layer][:, channels].astype(np.int32) + offset
            encoder.encode(chosen.ravel(), model)
    return encoder.get_compressed().tobytes()


def _uncode(words: np.ndarray, tables: Tables, shape: tuple[int, ...]) -> Symbols:
    planes, layers, slots, channels_all = shape
    num_anchors = -(-slots // ANCHOR_EVERY)
    anchors = np.empty((planes, layers, num_anchors, channels_all), np.int8)
    deltas = np.empty((planes, layers, slots - num_anchors, channels_all), np.int8)
    top = tables.deltas.shape[-1] // 2
    decoder = constriction.stream.queue.RangeDecoder(words)
    try:
        for (plane, layer, _, channels), models in zip(tables.members, tables.models, strict=True):
            for values, model, offset in zip(
                (anchors, deltas), models, (ANCHOR_LEVELS, top), strict=True
            ):
                count = values.shape[2] * len(channels)
                found = decoder.decode(model, count).reshape(values.shape[2], -1)
                values[plane, layer][:, channels] = found - offset
        spare = not decoder.maybe_exhausted()
    except (ValueError, AssertionError, RuntimeError):
        raise CodecFault("corrupt") from None
    if spare:
        raise CodecFault("corrupt")
    return Symbols(anchors, deltas)


def _read_head(
    payload: memoryview,
) -> tuple[tuple[int, int, int, int], tuple[RowPart, ...], int, memoryview]:
    """([2, L, S, C], parts, fingerprint of the tables, the rest)."""
    if len(payload) < _HEAD.size:
        raise CodecFault("truncated")
    magic, count, layers, heads, slots, dim, tables = _HEAD.unpack_from(payload)
    end = _HEAD.size + count * _PART.size
    if magic != MAGIC:
        raise CodecFault("foreign")
    if len(payload) < end:
        raise CodecFault("truncated")
    parts = []
    for at in range(_HEAD.size, end, _PART.size):
        layer, num_layers, head, num_heads, *kinds = _PART.unpack_from(payload, at)
        try:
            k_format, v_format = (TYPES[kind] for kind in kinds)
            spec = PageSpec(num_layers, num_heads, dim, slots, k_format, v_format)
        except (IndexError, ValueError):
            raise CodecFault("corrupt") from None
        parts.append(RowPart(spec, layer, head))
    if not parts or extent(tuple(parts)) != (layers, heads):
        raise CodecFault("corrupt")
    return (2, layers, slots, heads * dim), tuple(parts), tables, payload[end:]
