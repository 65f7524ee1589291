"""Bounds hold for every key of a page in every format; the pages chosen are the best ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvkernels import bounds
from kvkernels.layout import FORMATS, PageSpec
from kvkernels.pages import decode_pages

from tests.kernels.bounds_cases import by_rule, check_bounds, filled, selections


@pytest.mark.parametrize("fmt", FORMATS)
def test_bounds_hold_and_are_tight(fmt: str) -> None:
    spec = PageSpec(3, 2, 64, 16, fmt, "bf16")
    found = check_bounds(bounds, spec)
    assert min(found["below"], found["above"], found["margin"]) >= 0, found
    assert found["loose"] < 2**-7
    assert bounds.make_bounds(5, spec, "cpu").nbytes == 5 * bounds.bound_bytes(spec)


@pytest.mark.parametrize("fmt", ["fp32", "int8", "turbo4"])
def test_bounds_of_keys_that_are_rotated_at_read(fmt: str) -> None:
    found = check_bounds(bounds, PageSpec(2, 1, 64, 16, fmt, "bf16"), rope=True)
    assert min(found["below"], found["above"], found["margin"]) >= 0, found


@pytest.mark.parametrize("fmt", ["fp32", "int4", "lowrank"])
def test_outliers_have_the_least_cosine_to_the_mean_of_their_keys(fmt: str) -> None:
    """In float64, over pages of several layers and heads; pages that are not there are none."""
    spec = PageSpec(2, 2, 64, 16, fmt, "bf16")
    arena, offsets, state = filled(spec)
    rows = torch.tensor([3, 0, 7, 1, 5, 2])
    landmarks = bounds.make_bounds(8, spec, "cpu", num_vectors=1)
    cosines = torch.full((8, 2, 2), torch.nan)
    for layers in (range(1), range(1, 2)):
        bounds.update_bounds(
            arena, spec, offsets, state, landmarks, rows, layers=layers, cosines=cosines
        )
    keys = decode_pages(arena.view(len(rows), -1), spec, "k", state).double()  # [n, L, H, S, D]
    mean = keys.mean(3, keepdim=True)
    dots = (keys * mean).sum(-1)
    least = (dots / (keys.norm(dim=-1) * mean.norm(dim=-1))).amin((2, 3))  # [n, L]
    torch.testing.assert_close(cosines[rows].amin(2).double(), least, rtol=1e-5, atol=1e-6)
    for layer in range(2):
        table = rows.repeat(1, 2, 1)  # one head group, two queries
        table[0, 1, least[:, layer].argmin()] = -1
        order = least[:, layer].argsort().tolist()
        for count in (0, 1, 3, 9):
            found = bounds.outlier_pages(cosines, layer, table, count)[0]
            assert set(found[0].nonzero().flatten().tolist()) == set(order[:count])
            assert set(found[1].nonzero().flatten().tolist()) == set(order[1 : count + 1])


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20))
def test_rounding_goes_up_by_less_than_a_step(numbers: list[float]) -> None:
    exact = torch.tensor(numbers)
    up = bounds.round_up(exact).float()
    assert (up >= exact).all()
    assert (up - exact <= exact.abs() * 2**-7 + 1e-37).all()
    assert torch.equal(bounds.round_up(exact.bfloat16().float()), exact.bfloat16())


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_the_best_pages_are_chosen(seed: int) -> None:
    case = selections(seed)
    assert torch.equal(bounds.select_pages(*case), by_rule(*case))
