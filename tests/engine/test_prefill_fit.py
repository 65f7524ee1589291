"""What computing known text takes: the fit finds the line, and says nothing it has not seen."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.engine.prefill_fit import DOUBLE_TOKENS, MOST_SHARE, PrefillFit


def test_the_line_is_found() -> None:
    fit = PrefillFit()
    for prefix in (0, 512, 1024, 1536):
        fit.observe(512, 512 * (2e-4 + 1e-7 * prefix), prefix)
    assert fit.growth == pytest.approx(5e-4)
    assert fit.work(16, 0) == pytest.approx(16 * (1 + 5e-4 * 7.5))
    assert fit.work(16, 4000) / fit.work(16, 0) == pytest.approx(3.0038 / 1.00375, rel=1e-3)


def test_before_prefixes_differ_a_long_one_counts_by_its_length() -> None:
    fit = PrefillFit()
    assert fit.growth == 1 / DOUBLE_TOKENS
    fit.observe(64, 0.1, 31.5)
    fit.observe(64, 0.2, 33.0)
    assert fit.growth == 1 / DOUBLE_TOKENS and fit.s_per_token == pytest.approx(
        0.8 * 0.1 / 64 + 0.2 * 0.2 / 64
    )


steps = st.tuples(st.integers(1, 512), st.floats(1e-6, 10.0) | st.just(0.0), st.floats(0.0, 8192.0))


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(steps, max_size=30))
def test_a_cost_is_finite_and_grows_with_depth_whatever_was_measured(
    measured: list[tuple[int, float, float]],
) -> None:
    fit = PrefillFit()
    for num_tokens, seconds, prefix in measured:
        fit.observe(num_tokens, seconds, prefix)
    works = [fit.work(16, first) for first in (0, 16, 4096)]
    assert 16 <= works[0] <= works[1] <= works[2] < 16 * (1 + 4104 / (1 - MOST_SHARE))
