"""The bench on a random model: our codecs cost what float64 encoders of the schemes cost."""

import numpy as np
import pytest

from workbench.quality import bench
from workbench.quality.metrics import TokenScores
from workbench.settings.formats import KV_FORMATS


@pytest.fixture(scope="module")
def figures():
    told: list[str] = []
    measured = bench.measure(told.append, quick=True)
    assert told[0].endswith("window 1: full cache")
    return {figure.name: figure for figure in measured}


def test_every_scheme_has_its_figures(figures):
    for name in bench.FORMATS:
        assert {f"kl_{name}", f"kl_vs_float64_{name}"} <= figures.keys()
    assert figures["scored_tokens"].value == 64
    assert figures["live_quality_s"].value > 0


def test_our_codecs_are_the_float64_schemes(figures):
    """Two layers leave no room for rounding to grow: equal schemes are equal to 1e-4."""
    for name in bench.FORMATS:
        ratio = figures[f"kl_vs_float64_{name}"]
        assert ratio.value == pytest.approx(1, abs=1e-4), ratio


def test_formats_take_the_bytes_they_claim(figures):
    assert figures["bytes_claim_error_max"].value <= 0.01
    note = figures["bytes_claim_error_max"].note
    assert all(name in note for name in KV_FORMATS) and f"{len(KV_FORMATS)} formats" in note
    assert "8 retention settings (policy, level, grouping) that keep 96 of 256 tokens" in note


def test_a_scheme_without_a_format_says_so(monkeypatch):
    monkeypatch.setattr(bench, "FORMATS", bench.FORMATS | {"int4": ("int5", "int5", 0.0)})
    measured = {item.name: item for item in bench.measure(lambda text: None, quick=True)}
    assert measured["kl_int4"].value is None
    assert measured["kl_vs_float64_int4"].note == "n/a: not built yet"
    assert measured["kl_vs_float64_max"].note.startswith("over 6 schemes")


def test_the_interval_of_a_ratio_holds_it():
    draw = np.random.default_rng(0)

    def scores(rows: np.ndarray) -> list[TokenScores]:
        zeros = np.zeros(rows.shape[1])
        return [TokenScores(zeros, zeros == 0, kl, *[zeros] * 6) for kl in rows]

    twin = draw.gamma(0.5, 1, (8, 512))
    low, high = bench.ratio_interval(scores(2 * twin), scores(twin))
    assert low == pytest.approx(2) and high == pytest.approx(2)
    low, high = bench.ratio_interval(scores(draw.gamma(0.5, 1, (8, 512))), scores(twin))
    assert low < 1 < high
    assert bench.ratio_interval(scores(twin[:1]), scores(twin[:1])) is None
