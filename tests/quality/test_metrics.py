"""Metrics against their definitions in NumPy float64, and what must hold exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.quality import metrics


def log_rows(seed: int, rows: int = 6, vocab: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(4 * torch.randn(rows, vocab, generator=generator), -1)


def scored(full: torch.Tensor, ours: torch.Tensor, mask: list[bool] | None = None):
    count = len(full)
    return metrics.score_rows(
        full, ours, np.arange(count), np.arange(10, 10 + count), np.array(mask or [True] * count)
    )


@given(st.integers(0, 1000), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_kl_is_the_definition_and_never_negative(one: int, two: int):
    full, ours = log_rows(one), log_rows(two)
    exact = full.double().numpy(), ours.double().numpy()
    expected = (np.exp(exact[0]) * (exact[0] - exact[1])).sum(-1)
    got = metrics.token_kl(full, ours).numpy()
    assert got == pytest.approx(np.maximum(expected, 0), abs=1e-5)
    assert (got >= 0).all()
    assert (got == 0).all() or one != two


def test_equal_rows_agree_exactly():
    rows = log_rows(3)
    result = scored(rows, rows.clone())
    assert (result.kl == 0).all()
    assert (result.top5 == 1).all()
    assert metrics.first_divergence(result) == -1
    assert not len(result.flips)
    assert (result.nll == result.nll_full).all()


def test_top_overlap_counts_shared_tokens():
    full = torch.arange(10.0)[None]
    ours = full.clone()
    ours[0, 9], ours[0, 0] = 0.0, 9.0  # the best token leaves, another comes
    assert metrics.top_overlap(full, ours, 5).item() == pytest.approx(0.8)


def test_only_masked_positions_count():
    full = log_rows(5)
    ours = full.clone()
    ours[0] = full[1]  # differs where nothing compressed was read
    ours[4] = full[2]
    result = scored(full, ours, [False, True, True, True, True, True])
    assert list(result.flips) == [4]
    assert metrics.first_divergence(result) == 3
    curve = metrics.mean_by_offset([result])
    assert np.isnan(curve[0]) and curve[4] > 0 and curve[1] == 0


def test_bootstrap_brackets_the_value_and_is_seeded():
    windows = [scored(log_rows(n), log_rows(n + 50)) for n in range(8)]
    kl, ppl = metrics.bootstrap(windows, 1, 500)
    whole = metrics.join(windows)
    assert kl.value == pytest.approx(whole.kl.mean())
    assert kl.low < kl.value < kl.high
    difference = metrics.perplexity(whole.nll) - metrics.perplexity(whole.nll_full)
    assert ppl.value == pytest.approx(difference)
    assert ppl.low <= ppl.value <= ppl.high
    assert metrics.bootstrap(windows, 1, 500) == (kl, ppl)
    assert metrics.bootstrap(windows, 2, 500)[0] != kl


def test_one_window_has_no_interval():
    kl, ppl = metrics.bootstrap([scored(log_rows(1), log_rows(2))], 0, 50)
    assert kl.value > 0 and kl.low is kl.high is ppl.low is None


def test_perplexity_of_a_uniform_guess_is_the_vocabulary():
    assert metrics.perplexity(np.full(7, np.log(40.0))) == pytest.approx(40)
