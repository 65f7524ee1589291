"""The parts of a step add up to its wall time, so that a stacked bar shows no time twice."""

import pytest

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, SamplingParams


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
def test_parts_add_up(kv_format: str) -> None:
    changes = {"cache.k_format": kv_format, "cache.v_format": kv_format}
    engine = Engine(replace_settings(EngineConfig(), changes), random_model(2))
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    engine.add_request(RequestSpec(token_ids=list(range(40)), sampling=params))
    while engine.has_work():
        engine.step()
        view = engine.recorder.last
        assert view is not None
        parts = (
            view.attention_ms
            + view.linears_ms
            + view.gather_ms
            + view.dequant_ms
            + view.scheduler_ms
            + view.other_ms
        )
        assert parts == pytest.approx(view.wall_ms, rel=1e-6)
