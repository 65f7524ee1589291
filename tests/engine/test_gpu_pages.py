"""A page that the GPU's kernels cannot read is refused by its setting, before anything changes."""

import pytest

from workbench.cache.geometry import build_geometry
from workbench.config import EngineConfig, replace_settings
from workbench.engine.group_specs import group_specs
from workbench.errors import SettingError
from workbench.model.random_launch import random_model

pytest.importorskip("triton", reason="Triton has wheels for Linux only")

KIVI = {"cache.k_format": "kivi4", "cache.v_format": "kivi4"}


@pytest.mark.parametrize(("changes", "head_dim", "says"), [
    (KIVI | {"cache.block_size": 8}, 64,
     "cache.k_format = kivi4 has no Triton kernel for block_size 8 in groups of 8 tokens: "
     "choose a multiple of 16 (or take another format)"),
    (KIVI | {"cache.block_size": 32, "cache.kivi_group": 8}, 64,
     "cache.k_format = kivi4 has no Triton kernel for block_size 32 in groups of 8 tokens: "
     "choose a multiple of 16 (or take another format)"),
    ({"cache.v_format": "int4"}, 32,
     "cache.v_format = int4 has no Triton kernel for head_dim 32: it must be a power of two from "
     "64 on (or take another format)"),
])  # fmt: skip
def test_refused_on_a_gpu_and_taken_on_a_cpu(
    changes: dict, head_dim: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(2)
    config = replace_settings(EngineConfig(), changes)
    geometry = build_geometry("model", num_layers=2, num_kv_heads=2, head_dim=head_dim)
    assert group_specs(geometry, config, model).full
    monkeypatch.setattr(model.decoder, "device", "cuda")
    with pytest.raises(SettingError) as error:
        group_specs(geometry, config, model)
    assert str(error.value) == says


@pytest.mark.parametrize("changes", [
    {}, {"cache.values": "dram", "cache.k_format": "lowrank", "tiers.dram_mib": 64.0},
    {"cache.k_format": "lowrank_int4", "cache.rank_heads": 2},
])  # fmt: skip
def test_read_by_both(changes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(2)
    config = replace_settings(EngineConfig(), changes)
    geometry = build_geometry("model", num_layers=2, num_kv_heads=2, head_dim=64)
    monkeypatch.setattr(model.decoder, "device", "cuda")
    assert group_specs(geometry, config, model).full
