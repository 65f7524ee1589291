"""The default model, where it is cached: identity is exact, and a needle is found."""

import pytest
import torch

from workbench.model.fetch import cached_path
from workbench.model.load import load_model
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting
from workbench.quality.run import measure
from workbench.quality.settings_file import format_changes


@pytest.mark.skipif(cached_path() is None, reason="the default model is not fetched")
def test_identity_int8_and_eviction_on_the_real_model():
    torch.set_num_threads(1)
    plan = QualityPlan(context=128, scored=32, num_windows=1, needle=True)
    settings = [
        Setting(name="identity", changes=format_changes("bf16", "bf16")),
        Setting(name="int8", changes=format_changes("int8", "int8")),
        Setting(name="int2", changes=format_changes("int2", "int2")),
    ]
    same, eight, two = measure(load_model(), settings, plan)
    assert same.kl_mean == 0 and same.top1 == same.top5 == 1
    assert 0 < eight.kl_mean < 0.02 < two.kl_mean
    assert all(item.logprob == item.logprob_full for item in same.needle)
    assert all(item.exact_full for item in same.needle)
