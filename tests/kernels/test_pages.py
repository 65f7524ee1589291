"""Codecs and whole-page operations of the torch backend."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvkernels import reference
from kvkernels.api import FormatState, Scratch
from kvkernels.formats.fp8 import E4M3
from kvkernels.formats.integer import INT8
from kvkernels.layout import FORMATS, PageSpec
from kvkernels.pages import decode_pages, encode_pages

from tests.kernels.cases import step_of


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dim", [64, 128])
def test_decode_returns_what_was_encoded_within_half_a_step(fmt: str, dim: int) -> None:
    x = torch.randn(5, 7, dim) * 3
    code = FORMATS[fmt].key.encode(x)
    assert code.data.dtype == torch.uint8
    assert code.data.shape == (5, 7, FORMATS[fmt].key.row_bytes(dim))
    error = (FORMATS[fmt].key.decode(code.data, code.meta) - x).abs().double()
    assert (error <= step_of(fmt, x.double())).all()


@pytest.mark.parametrize("fmt", FORMATS)
def test_zero_vectors_and_tiny_vectors_survive(fmt: str) -> None:
    for value in (0.0, 1e-30, -1e-12):
        x = torch.full((3, 64), value)
        for plane in (FORMATS[fmt].key, FORMATS[fmt].value):
            code = plane.encode(x)
            back = plane.decode(code.data, code.meta)
            assert torch.isfinite(back).all() and (back.abs() < 1e-6).all()


def test_fp8_rounds_as_torch_does() -> None:
    """The bit shift of the decoder is exact, subnormals and the largest values included."""
    every = torch.arange(-40000, 40001, dtype=torch.float32) / 64.0
    x = torch.cat([every, every / 1000, torch.randn(20000) * 0.02])[None].clamp(-448, 448)
    want = x.to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(E4M3.encode(x).data & 0x7F, want & 0x7F)
    assert torch.equal(E4M3.decode(want), want.view(torch.float8_e4m3fn).to(torch.float32))


@pytest.mark.parametrize("count", [64, 20000])
def test_fp8_saturates_and_counts(count: int) -> None:
    x = torch.zeros(count)
    x[:3] = torch.tensor([500.0, -9999.0, 448.0])
    saturated = torch.zeros(1, dtype=torch.int64)
    code = E4M3.encode(x, 1.0, saturated)
    assert E4M3.decode(code.data)[:3].tolist() == [448.0, -448.0, 448.0]
    assert saturated.item() == 2
    E4M3.encode(x, 0.5, saturated)
    assert saturated.item() == 5


def test_unknown_formats_and_missing_metadata_are_named() -> None:
    with pytest.raises(ValueError, match="k_format = 'int5' is unknown: choose one of"):
        spec_of("int5")
    with pytest.raises(ValueError, match="v_format = int4: head_dim 63 does not pack"):
        PageSpec(3, 2, 63, 16, "bf16", "int4")
    with pytest.raises(ValueError, match="format int8 needs its metadata to decode"):
        INT8.decode(torch.zeros(1, 64, dtype=torch.uint8))
    with pytest.raises(TypeError):
        FORMATS["mine"] = FORMATS["int8"]  # type: ignore[index]


def spec_of(k: str, v: str | None = None) -> PageSpec:
    return PageSpec(3, 2, 64, 16, k, v or k)


@settings(max_examples=25, deadline=None)
@given(
    fmt=st.sampled_from(list(FORMATS)),
    order=st.permutations(range(10)),
    count=st.integers(1, 5),
)
def test_pages_move_unchanged(fmt: str, order: list[int], count: int) -> None:
    spec = spec_of(fmt)
    arena = torch.randint(0, 256, (10 * spec.page_bytes,), dtype=torch.uint8)
    before = arena.view(10, -1).clone()
    src = torch.tensor(order[:count]) * spec.page_bytes
    dst = torch.tensor(order[5 : 5 + count]) * spec.page_bytes
    out = torch.empty(count, spec.page_bytes, dtype=torch.uint8)
    assert torch.equal(reference.gather_pages(arena, spec, src, out), before[order[:count]])
    reference.copy_pages(arena, spec, src, dst)
    want = before.clone()
    want[order[5 : 5 + count]] = before[order[:count]]
    assert torch.equal(arena.view(10, -1), want)
    reference.scatter_pages(arena, spec, dst, before[order[5 : 5 + count]])
    assert torch.equal(arena.view(10, -1), before)


HUBS = ("bf16", "int8", "fp8_e4m3_head", "kivi4")
PAIRS = {(src, dst) for src in FORMATS for dst in HUBS} | {(s, d) for s in HUBS for d in FORMATS}


@pytest.mark.parametrize(("src_fmt", "dst_fmt"), sorted(PAIRS))
@pytest.mark.parametrize("staged", [False, True])
def test_recode_keeps_values_within_the_new_format(
    src_fmt: str, dst_fmt: str, staged: bool
) -> None:
    src, dst = spec_of(src_fmt), spec_of(dst_fmt, "bf16")
    src_state, dst_state = FormatState.from_spec(src), FormatState.from_spec(dst)
    src_state.k_scale.fill_(0.5)
    pages = torch.full((3, src.page_bytes), 0xFF, dtype=torch.uint8)
    for plane in ("k", "v"):
        encode_pages(pages, src, plane, src_state, torch.randn(3, 3, 2, 16, 64))
    pages[1].fill_(0xFF)  # never written: NaN
    size = max(src.page_bytes, dst.page_bytes)
    arena = torch.zeros(8 * size, dtype=torch.uint8)
    source = pages.view(-1).clone() if staged else None
    at = torch.arange(3) * (src.page_bytes if staged else size)
    if not staged:
        reference.scatter_pages(arena, src, at, pages)
    there = (torch.arange(3) + 4) * size
    live = torch.tensor([16, 0, 16])
    scratch = Scratch()
    reference.recode_pages(
        arena, src, at, src_state, dst, there, dst_state, scratch, source=source, num_slots=live
    )
    out = reference.gather_pages(
        arena, dst, there, torch.empty(3, dst.page_bytes, dtype=torch.uint8)
    )
    assert scratch.bytes > 0 and dst_state.saturated.item() == 0
    for plane, fmt in (("k", dst_fmt), ("v", "bf16")):
        want = decode_pages(pages, src, plane, src_state)
        got = decode_pages(out, dst, plane, dst_state)
        assert not got[1].any()
        for i in (0, 2):
            error = (got[i] - want[i]).abs().double()
            assert (error <= step_of(fmt, want[i].double())).all()


def test_recode_refuses_another_shape() -> None:
    other = PageSpec(3, 2, 64, 32, "int8", "int8")
    state = FormatState.from_spec(other)
    at = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="block_size differs, but only the formats may"):
        reference.recode_pages(
            torch.zeros(1 << 20, dtype=torch.uint8), spec_of("bf16"), at, state, other, at, state,
            Scratch(),
        )  # fmt: skip


def test_page_bytes_hold_every_plane_without_overlap() -> None:
    """Planes written in any order do not disturb one another, and fit the stated bytes."""
    for k in FORMATS:
        for v in FORMATS:
            spec = PageSpec(2, 3, 64, 16, k, v)
            state = FormatState.from_spec(spec)
            pages = torch.zeros(1, spec.page_bytes, dtype=torch.uint8)
            one, two = torch.randn(2, 1, 2, 3, 16, 64).unbind(0)
            encode_pages(pages, spec, "k", state, one)
            first = decode_pages(pages, spec, "k", state)
            encode_pages(pages, spec, "v", state, two)
            assert torch.equal(decode_pages(pages, spec, "k", state), first)


def test_the_package_needs_no_triton() -> None:
    script = (
        "import sys, kvkernels; assert 'torch' not in sys.modules;"
        "import kvkernels.reference, kvkernels.backend; kvkernels.backend.select('cpu');"
        "assert 'kvkernels.triton_backend' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
