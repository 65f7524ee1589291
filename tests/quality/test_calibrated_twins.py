"""KVQuant and low rank in the engine cost what float64 encoders with the same tables cost."""

import pytest
import torch

from workbench.engine.calibrating import calibrate
from workbench.quality.engines import lab_engine, run_window, schedule
from workbench.quality.numpy_schemes import kvquant, palu
from workbench.quality.plan import QualityPlan
from workbench.quality.probes import probe
from workbench.quality.results import Setting
from workbench.quality.settings_file import format_changes
from workbench.quality.texts import text_windows
from workbench.quality.twins import FP32_PAGES, twin_engine

PLAN = QualityPlan(context=96, scored=32, num_windows=1, context_chunk=32, weight_format="fp32")


@pytest.fixture(scope="module")
def known(model, tmp_path_factory):
    return calibrate(model, 512, tmp_path_factory.mktemp("calibration") / "own.safetensors")


def logits_of(model, build) -> torch.Tensor:
    window = text_windows(model.tokenizer, PLAN)[0]
    rows = []
    with build(len(window.token_ids)) as engine:
        steps = schedule(window, PLAN, None)
        run_window(engine, window, steps, lambda *seen: rows.append(seen[-1].clone()))
    return torch.cat(rows)


@pytest.mark.parametrize("name, rank", [("kvquant4", 0), ("kvquant2", 0), ("lowrank", 12),
                                        ("lowrank_int4", 12)])  # fmt: skip
def test_the_engine_is_the_float64_scheme(model, known, name, rank):
    tables = {key: value.double().numpy() for key, value in known.tensors.items()}
    if rank:
        scheme = palu(tables, rank, 4 if name.endswith("int4") else 16)
    else:
        scheme = kvquant(tables, int(name[-1]))
    changes = format_changes(name, name) | {
        "cache.calibration": str(known.path), "cache.rank": rank, "cache.block_size": 32,
        "cache.sink_tokens": 0,
    }  # fmt: skip
    ours = logits_of(model, lambda size: lab_engine(model, changes, size))
    twin = logits_of(model, lambda size: twin_engine(model, scheme, size))
    full = logits_of(model, lambda size: lab_engine(model, FP32_PAGES, size))
    lost, apart = (twin - full).norm(), (ours - twin).norm()
    assert lost > 0
    assert apart < 0.02 * lost, (float(apart), float(lost))


def test_probes_rotate_what_comes_before_rope(model):
    """Full pages with rotation at read lose nothing anywhere."""
    found = probe(model, Setting(name="x", changes=FP32_PAGES | {"retention.positions": "compact"}),
                  PLAN)  # fmt: skip
    assert (found.output_error < 1e-4).all()
    assert (found.kept_mass > 0.9999).all() and (found.k_snr_db > 100).all()
