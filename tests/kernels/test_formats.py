"""Every page format: against float64, streamed against one-shot, ragged against alone, in bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvkernels import reference
from kvkernels.api import FormatState, Scratch, StepTables
from kvkernels.formats.rotation import hadamard, hadamard_matrix
from kvkernels.formats.turbo import codebook
from kvkernels.layout import FORMATS, PageSpec, fitting_formats
from kvkernels.pages import decode_pages, encode_pages, plane_view
from torch import Tensor

from tests.kernels.float64_encoders import KEYS, VALUES, lloyd_max, shared

TOKENWISE = [fmt for fmt in FORMATS if not FORMATS[fmt].key.grouped]
GROUPED = [fmt for fmt in FORMATS if FORMATS[fmt].key.grouped]
SHARED = {"fp8_e4m3", "fp8_e5m2", "fp8_e4m3_head", "fp8_e5m2_head", "nvfp4"}


def like_keys(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers with a few loud channels, as keys have."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x[..., ::13] = x[..., ::13] * 6 + 4
    return x


def agrees(got: np.ndarray, want: np.ndarray, given_: np.ndarray) -> None:
    """Equal but for numbers that fp32 and float64 put on two sides of a rounding boundary.

    A scale in fp16 is such a number too, and moves every number of its vector by a last bit of it.
    """
    scale = np.abs(given_).max()
    differs = np.abs(got - want) > 1e-5 * scale
    assert differs.mean() < 2e-2, f"{differs.mean():.2%} of the numbers differ"
    differs &= np.abs(got - want) > 2**-10 * np.abs(want)
    assert differs.mean() < 2e-3, f"{differs.mean():.2%} of the numbers differ by a level"
    ours, theirs = (np.sqrt(np.mean((x - given_) ** 2)) for x in (got, want))
    assert ours <= theirs * 1.002 + 1e-7, (ours, theirs)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("slots", [16, 32, 64])
def test_decodes_to_what_a_float64_encoder_gives(fmt: str, dim: int, slots: int) -> None:
    x = like_keys(6, slots, dim)
    for plane, encoder in ((FORMATS[fmt].key, KEYS[fmt]), (FORMATS[fmt].value, VALUES[fmt])):
        code = plane.encode(x)
        got = plane.decode(code.data, code.meta).double().numpy()
        given_ = x.double().numpy()
        agrees(got, np.stack([encoder(page) for page in given_]), given_)


@pytest.mark.parametrize("fmt", sorted(SHARED))
def test_shared_scales_reach_pages(fmt: str) -> None:
    """One scale a layer, or one a layer and head: each (layer, head) is the float64 encoder's."""
    spec = PageSpec(2, 3, 64, 16, fmt, fmt)
    state = FormatState.from_spec(spec)
    state.k_scale[:] = torch.tensor([0.5, 0.03])
    state.k_head_scale[:] = torch.tensor([[0.5, 1.0, 2.0], [0.03, 0.01, 0.3]])
    x = like_keys(1, 2, 3, 16, 64)
    pages = torch.zeros(1, spec.page_bytes, dtype=torch.uint8)
    encode_pages(pages, spec, "k", state, x)
    got = decode_pages(pages, spec, "k", state)
    for layer in range(2):
        for head in range(3):
            by_head = FORMATS[fmt].key.shared == "head"
            scale = state.k_head_scale[layer, head] if by_head else state.k_scale[layer]
            given_ = x[0, layer, head].double().numpy()
            want = shared(KEYS[fmt], float(scale))(given_)
            agrees(got[0, layer, head].double().numpy(), want, given_)


def test_the_codebook_is_the_best_quantiser_of_a_normal_number() -> None:
    for bits in (3, 4):
        assert np.abs(codebook(bits).numpy() - lloyd_max(bits)).max() < 1e-6


@pytest.mark.parametrize("bits", [3, 4])
def test_turbo_keys_keep_their_norm(bits: int) -> None:
    x = like_keys(50, 64)
    fmt = FORMATS[f"turbo{bits}"].key
    code = fmt.encode(x)
    back = fmt.decode(code.data, code.meta)
    torch.testing.assert_close(back.norm(dim=-1), x.norm(dim=-1), rtol=1e-3, atol=0.0)


def test_hadamard_spreads_an_outlier_and_undoes_itself() -> None:
    one = torch.zeros(1, 64)
    one[0, 5] = 8.0
    assert torch.equal(hadamard(one).abs(), torch.ones(1, 64))
    x = like_keys(9, 128)
    torch.testing.assert_close(hadamard(hadamard(x)), x)
    torch.testing.assert_close(hadamard(x), x @ hadamard_matrix(128, x.device))
    many = like_keys(200, 128)  # too many for numpy
    assert torch.equal(hadamard(many)[:9], hadamard(many[:9]))


def stream(spec: PageSpec, x: Tensor, v: Tensor, cuts: list[int], state: FormatState) -> Tensor:
    """Write x [T, H, D] and v through steps of `cuts` tokens; returns pages [P, page_bytes]."""
    count = -(-x.shape[0] // spec.block_size)
    arena = torch.zeros(count * spec.page_bytes, dtype=torch.uint8)
    offsets = (np.arange(count, dtype=np.int64) * spec.page_bytes)[None, None]
    done = 0
    for cut in cuts:
        part = slice(done, done + cut)
        done += cut
        tables = StepTables(offsets, np.array([[done]], np.int32), np.array([cut], np.int32))
        plan = reference.make_plan(spec, tables, scratch=Scratch())
        reference.write_kv(arena, plan, 0, x[part], v[part], state)
    return arena.view(count, -1)


def paged(x: Tensor, slots: int) -> Tensor:
    """[T, H, D] as pages of one layer, [P, 1, H, S, D]."""
    return x.unflatten(0, (-1, slots)).transpose(1, 2)[:, None]


@settings(max_examples=40, deadline=None)
@given(
    fmt=st.sampled_from(TOKENWISE),
    other=st.sampled_from(TOKENWISE),
    cuts=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    seed=st.integers(0, 9),
)
def test_streamed_pages_equal_pages_encoded_at_once(
    fmt: str, other: str, cuts: list[int], seed: int
) -> None:
    spec = PageSpec(1, 2, 64, 16, fmt, other)
    total = -(-sum(cuts) // 16) * 16
    cuts = [*cuts, total - sum(cuts)] if total > sum(cuts) else cuts
    x, v = like_keys(total, 2, 64, seed=seed), like_keys(total, 2, 64, seed=seed + 100)
    state = FormatState.from_spec(spec)
    state.k_scale[:], state.v_scale[:] = 0.5, 0.25
    state.k_head_scale[0] = torch.tensor([0.5, 2.0])
    once = torch.zeros(total // 16, spec.page_bytes, dtype=torch.uint8)
    encode_pages(once, spec, "k", state, paged(x, 16))
    encode_pages(once, spec, "v", state, paged(v, 16))
    assert torch.equal(stream(spec, x, v, cuts, state), once)


@pytest.mark.parametrize("fmt", GROUPED)
@pytest.mark.parametrize("slots", [16, 32, 64])
def test_full_bf16_pages_recode_to_the_one_shot_encode(fmt: str, slots: int) -> None:
    """The way of a grouped page: tokens wait in bf16, the full page is encoded whole."""
    waiting, spec = PageSpec(1, 2, 64, slots, "bf16", "bf16"), PageSpec(1, 2, 64, slots, fmt, fmt)
    state = FormatState.from_spec(spec)
    x, v = like_keys(3 * slots, 2, 64), like_keys(3 * slots, 2, 64, seed=1)
    held = stream(waiting, x, v, [5, slots - 3, 1, 2 * slots - 3], state)
    at = torch.arange(3) * waiting.page_bytes
    arena = torch.cat([held.flatten(), torch.zeros(3 * spec.page_bytes, dtype=torch.uint8)])
    there = torch.arange(3) * spec.page_bytes + held.numel()
    reference.recode_pages(
        arena, waiting, at, state, spec, there, state, Scratch(),
        num_slots=torch.full((3,), slots),
    )  # fmt: skip
    once = torch.zeros(3, spec.page_bytes, dtype=torch.uint8)
    encode_pages(once, spec, "k", state, paged(x.bfloat16(), slots))
    encode_pages(once, spec, "v", state, paged(v.bfloat16(), slots))
    assert torch.equal(arena[held.numel() :].view(3, -1), once)


@pytest.mark.parametrize("fmt", GROUPED)
def test_single_tokens_and_partial_pages_are_refused_by_name(fmt: str) -> None:
    spec = PageSpec(1, 1, 64, 16, fmt, "int4")
    state = FormatState.from_spec(spec)
    arena = torch.zeros(2 * spec.page_bytes, dtype=torch.uint8)
    before = arena.clone()
    tables = StepTables(
        np.zeros((1, 1, 1), np.int64), np.ones((1, 1), np.int32), np.ones(1, np.int32)
    )
    plan = reference.make_plan(spec, tables, scratch=Scratch())
    k = torch.zeros(1, 1, 64)
    with pytest.raises(ValueError, match=f"k_format = {fmt} groups the tokens of a page: write"):
        reference.write_kv(arena, plan, 0, k, k, state)
    bf16 = PageSpec(1, 1, 64, 16, "bf16", "bf16")
    at = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"with 9 of 16 slots cannot become {fmt}/int4, which"):
        reference.recode_pages(
            arena, bf16, at, state, spec, at, state, Scratch(),
            source=torch.zeros(bf16.page_bytes, dtype=torch.uint8), num_slots=torch.tensor([9]),
        )  # fmt: skip
    assert torch.equal(arena, before)


@pytest.mark.parametrize("fmt", ["int4_rotated", "turbo4", "turbo3"])
def test_rotation_needs_a_power_of_two(fmt: str) -> None:
    with pytest.raises(ValueError, match=f"k_format = {fmt}: head_dim 96 is not a power of two"):
        PageSpec(1, 1, 96, 16, fmt, "bf16")


def test_formats_that_fit_a_shape_are_listed() -> None:
    rotated = {"int4_rotated", "turbo4", "turbo3"}
    assert fitting_formats(64, 16) == tuple(FORMATS)
    assert set(FORMATS) - set(fitting_formats(96, 32)) == rotated
    for dim, slots in ((8, 1), (16, 8), (80, 48)):
        assert set(FORMATS) - set(fitting_formats(dim, slots)) <= rotated


def test_a_head_scale_of_another_width_is_named() -> None:
    spec = PageSpec(1, 2, 64, 16, "fp8_e4m3_head", "bf16")
    state = FormatState.from_spec(spec, num_head_groups=2)  # four heads
    tables = StepTables(
        np.zeros((1, 1, 1), np.int64), np.ones((1, 1), np.int32), np.ones(1, np.int32)
    )
    plan = reference.make_plan(spec, tables, scratch=Scratch())
    k = torch.zeros(1, 2, 64)
    arena = torch.zeros(spec.page_bytes, dtype=torch.uint8)
    with pytest.raises(ValueError, match="k_head_scale has 4 heads, but this step covers 2"):
        reference.write_kv(arena, plan, 0, k, k, state)
    with pytest.raises(ValueError, match="k_head_scale has 4 heads, but a page holds 2"):
        decode_pages(arena.view(1, -1), spec, "k", state)
    with pytest.raises(ValueError, match="k_head_scale has 4 heads, which do not divide 6 query"):
        reference.attend(torch.zeros(1, 6, 64), arena, plan, 0, softmax_scale=1.0, state=state)


@pytest.mark.parametrize("fmt", FORMATS)
def test_each_request_of_a_ragged_batch_is_as_alone(fmt: str) -> None:
    """Bytes bit for bit, results to rounding: no group crosses a request or a page."""
    grouped = FORMATS[fmt].key.grouped
    spec = PageSpec(1, 2, 64, 16, "bf16" if grouped else fmt, fmt)
    state = FormatState.from_spec(spec)
    kv, q_lens = [33, 5, 48], [3, 5, 1]
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(9, heads, 64, generator=generator) for heads in (6, 2, 2))

    def run(requests: list[int]) -> tuple[Tensor, Tensor]:
        arena = torch.zeros(12 * spec.page_bytes, dtype=torch.uint8)
        filled = arena.view(12, -1)
        for plane in ("k", "v"):
            encode_pages(filled, spec, plane, state, like_keys(12, 1, 2, 16, 64))
        places = np.arange(12).reshape(1, 3, 4)[:, requests] * spec.page_bytes
        rows = [i for r in requests for i in range(sum(q_lens[:r]), sum(q_lens[: r + 1]))]
        lens = np.array([q_lens[r] for r in requests], np.int32)
        tables = StepTables(places, np.array([[kv[r] for r in requests]], np.int32), lens)
        plan = reference.make_plan(spec, tables, scratch=Scratch())
        reference.write_kv(arena, plan, 0, k[rows], v[rows], state)
        out = reference.attend(q[rows], arena, plan, 0, softmax_scale=0.125, state=state).out
        return filled, out

    together, out = run([0, 1, 2])
    first = 0
    for r, count in enumerate(q_lens):
        alone, own = run([r])
        assert torch.equal(alone[4 * r : 4 * r + 4], together[4 * r : 4 * r + 4])
        torch.testing.assert_close(own, out[first : first + count], rtol=1e-4, atol=1e-5)
        first += count


# stored bits per number of K and of V at D = 64 and pages of 32 slots
BITS = {
    "bf16": (16, 16), "fp32": (32, 32), "fp8_e4m3": (8, 8), "fp8_e5m2": (8, 8),
    "fp8_e4m3_head": (8, 8), "fp8_e4m3_token": (8.25, 8.25),
    "fp8_e5m2_head": (8, 8), "fp8_e5m2_token": (8.25, 8.25), "int8": (8.25, 8.25),
    "int4": (4.5, 4.5), "int4_rotated": (4.5, 4.5), "nvfp4": (4.5, 4.5), "int3": (3.5, 3.5),
    "int2": (3, 3), "turbo4": (4.25, 4.5), "turbo3": (3.25, 3.5), "kivi4": (5, 5),
    "kivi3": (4, 4), "kivi2": (3, 3), "kvquant4": (4.5, 5), "kvquant3": (3.5, 4),
    "kvquant2": (2.5, 3), "lowrank": (8, 8), "lowrank_int4": (2.5, 2.5),
}  # fmt: skip


@pytest.mark.parametrize("fmt", FORMATS)
def test_pages_take_the_bytes_they_claim(fmt: str) -> None:
    spec = PageSpec(30, 3, 64, 32, fmt, fmt)
    pages = torch.zeros(1, spec.page_bytes, dtype=torch.uint8)
    total = 0
    for plane, bits in zip(("k", "v"), BITS[fmt], strict=True):
        parts = [part for part in plane_view(pages, spec, plane) if part is not None]
        held = sum(part.numel() * part.element_size() for part in parts)
        assert held * 8 == bits * 30 * 3 * 64 * 32
        total += held
    assert total <= spec.page_bytes <= total * 1.01
    ratio = pages.untyped_storage().nbytes() / PageSpec(30, 3, 64, 32, "bf16", "bf16").page_bytes
    assert abs(ratio - sum(BITS[fmt]) / 32) <= 0.01 * ratio


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_method_names_two_planes_and_loses_something(fmt: str) -> None:
    method = FORMATS[fmt]
    assert method.name == fmt and method.key.bits == method.bits
    x = like_keys(2, 32, 64)
    for plane in (method.key, method.value):
        code = plane.encode(x)
        lost = float((plane.decode(code.data, code.meta) - x).abs().max())
        assert (lost == 0.0) == (fmt == "fp32")
