"""Bounds hold for every key of a page in every format; the pages chosen are the best ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvkernels import bounds
from kvkernels.layout import FORMATS, PageSpec

from tests.kernels.bounds_cases import by_rule, check_bounds, selections


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
