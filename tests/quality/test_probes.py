"""Probes: exact caches show nothing, and each kind of damage shows where it is."""

import numpy as np
import pytest

from workbench.quality.plan import QualityPlan
from workbench.quality.probes import EXACT_DB, Probes, probe
from workbench.quality.results import Setting
from workbench.quality.settings_file import format_changes

PLAN = QualityPlan(context=256, scored=64, num_windows=1)
EXACT = {"cache.k_format": "fp32", "cache.v_format": "fp32"}


def look(model, changes: dict) -> Probes:
    return probe(model, Setting(name="it", changes=changes), PLAN)


def test_an_exact_cache_shows_no_damage(model):
    result = look(model, EXACT)
    assert result.output_error.shape == (2, 4) and result.kept_mass.shape == (2, 2)
    assert result.output_error.max() < 1e-5
    assert result.kept_mass == pytest.approx(np.ones((2, 2)))
    assert (result.k_snr_db == EXACT_DB).all() and (result.v_snr_db == EXACT_DB).all()
    assert result.num_positions == 65
    assert (result.k_channel_max > 0).all() and result.k_channel_max.shape == (2, 2, 16)


def test_noise_is_told_apart_for_keys_and_values(model):
    result = look(model, format_changes("int4", "int8"))
    assert (result.v_snr_db - result.k_snr_db > 15).all()  # four bits are 24 dB
    assert (10 < result.k_snr_db).all() and (result.k_snr_db < 40).all()
    assert (result.output_error > 0.005).all()
    assert result.kept_mass == pytest.approx(np.ones((2, 2)))


@pytest.mark.parametrize("grouping", ["model", "layer", "head"])
@pytest.mark.parametrize("level", ["page", "token"])
def test_evicted_mass_is_missing_and_what_stays_is_exact(model, grouping: str, level: str):
    changes = EXACT | {
        "cache.grouping": grouping, "retention.policy": "h2o", "retention.level": level,
        "retention.budget_tokens": 128, "retention.window_tokens": 32,
    }  # fmt: skip
    result = look(model, changes)
    assert (result.kept_mass < 0.95).all() and (result.kept_mass > 0.1).all()
    assert (result.k_snr_db == EXACT_DB).all()
    assert (result.output_error > 0.01).all()


def test_grouped_formats_are_read_back(model):
    result = look(model, format_changes("kivi4", "kivi2"))
    assert (result.k_snr_db > result.v_snr_db).all()
