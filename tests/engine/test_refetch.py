"""What a preempted request lost to a tier comes back, even if more left HBM while it waited."""

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, SamplingParams


def recomputed_tokens(dram_mib: float) -> int:
    config = replace_settings(
        EngineConfig(),
        {
            "cache.hbm_budget_mib": 0.125,
            "cache.block_size": 4,
            "cache.k_format": "fp32",
            "cache.v_format": "fp32",
            "scheduling.chunk_tokens": 16,
            "tiers.gate": False,
            "tiers.dram_mib": dram_mib,
        },
    )
    engine = Engine(config, random_model(2))
    params = SamplingParams(max_tokens=80, ignore_eos=True)
    for start in range(6):
        tokens = [(start * 31 + at * 7) % 250 for at in range(30)]
        engine.add_request(RequestSpec(token_ids=tokens, sampling=params))
    while engine.has_work():
        engine.step()
    assert engine.metrics.num_preemptions >= 2
    engine.close()
    return engine.metrics.recomputed_tokens


def test_a_dram_tier_saves_most_recomputation() -> None:
    assert recomputed_tokens(2.0) * 4 < recomputed_tokens(0.0)
