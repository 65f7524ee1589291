"""Faults of other kernels (part 6 of the structural reference, by number), as tests of ours."""

from dataclasses import replace

import pytest
import torch
from kvkernels import reference

from tests.kernels.cases import Case, World, build, errors, expected, run

LENGTHS = (1024, 8192, 65536)


def relative_error(world: World) -> float:
    """|out - float64| / |float64| over all heads."""
    found = run(world, reference, mass=None).out  # writes the newest slot
    out, _, _ = expected(world)
    return float((found.view(out.shape).double() - out).norm() / out.norm())


def test_11_a_scale_is_read_anew_by_every_step() -> None:
    """vLLM #21640: scales that were captured once as constants."""
    world = build(Case("fp8_e4m3", "fp8_e4m3", ((33, 20),), (1, 1), new_lens=(0, 0)))
    before = run(world, reference, mass=None).out
    world.step_state.v_scale.mul_(2)
    torch.testing.assert_close(run(world, reference, mass=None).out, 2 * before)
    world.step_state.k_scale.mul_(2)
    assert not torch.allclose(run(world, reference, mass=None).out, 2 * before)


@pytest.mark.parametrize("shift", [-1e5, 1e5])
@pytest.mark.parametrize("fmt", ["fp32", "int8", "kivi4"])
@pytest.mark.parametrize("q_lens", [(1, 1), (5, 1)])
def test_12_logits_far_from_zero_are_logits(
    fmt: str, shift: float, q_lens: tuple[int, ...]
) -> None:
    """FlashInfer #4450: zeros for finite logits below -5e4."""
    world = build(Case(fmt, fmt, ((33, 20),), q_lens, log=True, shift=shift))
    found = errors(world, reference)
    assert found["out"] < 0.02 and found["mass"] < 0.1, "what 2**-7, a step of fp32 there, allows"
    assert found["lse"] < 0.01


@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("share", [1, 3, 7, 9])
def test_12_any_head_size_and_group(dim: int, share: int) -> None:
    """FlashInfer #4976: fp8 was wrong where sizes differ."""
    for fmt in ("fp8_e4m3", "int8"):
        found = errors(
            build(Case(fmt, fmt, ((33, 32),), (3, 1), heads=1, share=share, dim=dim)), reference
        )
        assert max(found["out"], found["lse"], found["mass"]) < 1e-5, found


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("rest", [0, 1, -1])
def test_12_any_page_size_and_remainder(block: int, rest: int) -> None:
    """FlashInfer #4347, #320: pages above 128 and lengths around a page's end."""
    length = max(1, 2 * block + rest)
    found = errors(build(Case("int8", "int4", ((length, 5),), (1, 1), block=block)), reference)
    assert max(found["out"], found["lse"], found["mass"]) < 1e-5, found


@pytest.mark.parametrize("fmt", ["fp8_e4m3", "int8", "bf16"])
def test_13_error_does_not_grow_with_length(fmt: str) -> None:
    """vLLM's needle at 128k: 91 to 13 %, by sums that lost precision with length."""
    case = Case(fmt, fmt, heads=1, share=3, q_lens=(1,), bf16=True)
    found = [relative_error(build(replace(case, kv_lens=((length,),)))) for length in LENGTHS]
    assert max(found) < 0.01 and found[-1] < 2 * found[0], dict(zip(LENGTHS, found, strict=True))
