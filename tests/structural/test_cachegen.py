"""CacheGen: numbers come back within a step of theirs, from a blob that names what it holds."""

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from kvkernels.layout import PageSpec

from workbench.cache.codec import MAGIC, CodecFault, RowPart, from_blob, to_blob
from workbench.structural.compression.cachegen import (
    COARSE,
    FINE,
    FIT_ROWS,
    CacheGen,
    largest_symbols,
    quantise,
    restore,
)
from workbench.structural.compression.cachegen_tables import NUM_CLASSES
from workbench.structural.compression.row_numbers import gather, scatter

LAYERS, HEADS, SLOTS, DIM = 4, 2, 16, 8


def parts_of(grouping: str, k_format: str = "bf16", v_format: str = "bf16") -> tuple[RowPart, ...]:
    if grouping == "model":
        return (RowPart(PageSpec(LAYERS, HEADS, DIM, SLOTS, k_format, v_format), 0, 0),)
    if grouping == "layer":
        spec = PageSpec(1, HEADS, DIM, SLOTS, k_format, v_format)
        return tuple(RowPart(spec, layer, 0) for layer in range(LAYERS))
    spec = PageSpec(1, 1, DIM, SLOTS, k_format, v_format)
    return tuple(RowPart(spec, layer, head) for layer in range(LAYERS) for head in range(HEADS))


def filled(parts: tuple[RowPart, ...], seed: int = 0) -> np.ndarray:
    """A row whose numbers drift from token to token, with channels of different size."""
    rng = np.random.default_rng(seed)
    pages = []
    for part in parts:
        spec = part.spec
        layers = np.zeros((spec.num_layers, spec.layer_bytes), np.uint8)
        offsets = {"k": (0, spec.k_format), "v": (spec.v_offset, spec.v_format)}
        for start, name in offsets.values():
            shape = (spec.num_layers, spec.num_kv_heads, SLOTS, DIM)
            walk = rng.standard_normal(shape).cumsum(2) * (1 + 8 * (np.arange(DIM) == 3))
            raw = walk.astype(np.float32)
            data = (raw.view(np.uint32) >> 16).astype(np.uint16) if name == "bf16" else raw
            flat = np.ascontiguousarray(data).reshape(spec.num_layers, -1).view(np.uint8)
            layers[:, start : start + flat.shape[1]] = flat
        pages.append(layers.ravel())
    return np.concatenate(pages)


def back(codec: CacheGen, blob: bytes, size: int) -> np.ndarray:
    page = np.full(size, 7, np.uint8)
    from_blob(codec, memoryview(blob), page)
    return page


@pytest.mark.parametrize("grouping", ["model", "layer", "head"])
@pytest.mark.parametrize("formats", [("bf16", "bf16"), ("fp32", "fp32"), ("fp32", "bf16")])
def test_numbers_come_back_within_half_a_step(grouping: str, formats: tuple[str, str]) -> None:
    parts = parts_of(grouping, *formats)
    codec = CacheGen()
    for seed in range(FIT_ROWS + 2):  # before and after the tables are found
        page = filled(parts, seed)
        blob = to_blob(codec, page, parts)
        found, values = gather(back(codec, blob, page.nbytes), parts), gather(page, parts)
        assert len(blob) < page.nbytes
        symbols, scales = quantise(values)
        exact = restore(symbols, scales)
        wide = scales.astype(np.float32)[..., None]
        limit = wide * 0.5 + np.abs(values) * 2.0**-8 + 1e-6  # half a step, and bf16 again
        assert (np.abs(found - values) <= limit).all()
        assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-8).all()


def test_all_groupings_of_a_row_give_the_same_numbers() -> None:
    """Scales are of a whole token's vector, however its heads are filed."""
    whole = parts_of("model", "fp32", "fp32")
    page = filled(whole)
    values = gather(page, whole)
    found = gather(back(codec := CacheGen(), to_blob(codec, page, whole), page.nbytes), whole)
    for grouping in ("layer", "head"):
        parts = parts_of(grouping, "fp32", "fp32")
        row = np.zeros(sum(part.spec.page_bytes for part in parts), np.uint8)
        scatter(values, parts, row)
        other = CacheGen()
        again = gather(back(other, to_blob(other, row, parts), row.nbytes), parts)
        assert (again == found).all()


def test_first_layers_have_finer_bins_and_anchors_the_finest() -> None:
    levels = largest_symbols(32)
    assert (levels[0] == FINE).sum() == 10 and (levels[1] == FINE).sum() == 2
    assert set(levels.ravel().tolist()) == {FINE, COARSE}
    symbols, scales = quantise(np.random.default_rng(0).standard_normal((2, 4, 16, 16), np.float32))
    assert symbols.anchors.shape[2] == 2 and symbols.deltas.shape[2] == 14, "tokens 0 and 10"
    assert np.abs(symbols.anchors).max() == 127 and scales.shape == (2, 4, 16)
    assert (np.abs(symbols.deltas).max((2, 3)) <= largest_symbols(4)).all()


@pytest.mark.parametrize("slots", [4, 16, 32])
def test_zeros_infinities_and_nans_are_numbers_again(slots: int) -> None:
    values = np.zeros((2, 1, slots, 4), np.float32)
    values[0, 0, 1] = (np.nan, np.inf, -np.inf, 1.0)
    found = restore(*quantise(values))
    assert np.isfinite(found).all() and (found[1] == 0).all()


def test_tables_are_found_once_counted_and_older_blobs_stay_readable() -> None:
    parts, codec = parts_of("model"), CacheGen()
    assert codec.shared_bytes == 0
    rows = [filled(parts, seed) for seed in range(FIT_ROWS + 8)]
    blobs = [to_blob(codec, row, parts) for row in rows]
    fitted = codec._newest[LAYERS, HEADS * DIM]
    assert codec.shared_bytes == sum(tables.num_bytes for tables in codec._tables.values())
    assert len(codec._tables) == 2 and fitted.anchors.shape[2] == NUM_CLASSES
    early = sum(map(len, blobs[: FIT_ROWS - 1])) / (FIT_ROWS - 1)
    late = sum(map(len, blobs[FIT_ROWS:])) / 8
    assert late < early, "tables of these numbers code them in fewer bytes"
    for row, blob in zip(rows, blobs, strict=True):
        assert np.isfinite(gather(back(codec, blob, row.nbytes), parts)).all()
    with pytest.raises(CodecFault, match="foreign"):  # tables of another engine
        back(CacheGen(), blobs[-1], rows[-1].nbytes)
    known = back(CacheGen(), blobs[0], rows[0].nbytes)  # tables that every engine has
    assert (known == back(codec, blobs[0], rows[0].nbytes)).all()


@pytest.mark.parametrize("k_format, v_format", [("int8", "bf16"), ("bf16", "kivi4")])
def test_other_formats_are_not_coded(k_format: str, v_format: str) -> None:
    parts = parts_of("model", k_format, v_format)
    page = np.zeros(parts[0].spec.page_bytes, np.uint8)
    with pytest.raises(CodecFault, match="not_coded"):
        to_blob(CacheGen(), page, parts)
    with pytest.raises(CodecFault, match="not_coded"):
        to_blob(CacheGen(), page)


def reseal(blob: bytes, payload: bytes) -> bytes:
    """The blob with another payload and the checksum that fits it."""
    head = blob[:16] + struct.pack("<Q", xxhash.xxh3_64_intdigest(payload))
    assert head.startswith(MAGIC)
    return head + payload


PARTS = parts_of("head")
CODEC = CacheGen()
PAGE = filled(PARTS)
BLOB = to_blob(CODEC, PAGE, PARTS)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_payload_is_a_fault_and_nothing_else(data: st.DataObject) -> None:
    """Even where the checksum was made to fit: never another exception, never a wrong shape."""
    payload = bytearray(BLOB[24:])
    for _ in range(data.draw(st.integers(1, 4))):
        last = len(payload) - 1
        at = data.draw(st.integers(0, min(last, 160)) | st.integers(0, last))
        payload[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    damaged = reseal(BLOB, bytes(payload[:cut]))
    try:
        page = back(CODEC, damaged, PAGE.nbytes)
    except CodecFault as error:
        assert error.reason in ("truncated", "foreign", "corrupt")
    else:
        assert page.nbytes == PAGE.nbytes


@pytest.mark.parametrize("at", [0, 4, 6, 8, 16, 24, 60, len(BLOB) - 1])
def test_a_damaged_blob_is_refused(at: int) -> None:
    blob = bytearray(BLOB)
    blob[at] ^= 0x55
    with pytest.raises(CodecFault, match="foreign|corrupt"):
        back(CODEC, bytes(blob), PAGE.nbytes)
    with pytest.raises(CodecFault, match="truncated|corrupt"):
        back(CODEC, bytes(BLOB[:at]), PAGE.nbytes)
    with pytest.raises(CodecFault, match="corrupt"):
        back(CODEC, BLOB, PAGE.nbytes - 64)
