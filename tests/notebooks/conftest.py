"""The lessons and what they import from their own folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.model.random_launch import random_model
from workbench.request import RequestSpec, SamplingParams

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture
def lesson_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The notebooks' folder, first on the path as a kernel has it."""
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    yield NOTEBOOKS
    sys.modules.pop("lesson", None)


@pytest.fixture
def engine() -> Engine:
    """Two requests under one beginning in a small engine with random weights."""
    config = replace_settings(
        EngineConfig(),
        {"cache.hbm_budget_mib": 0.25, "cache.block_size": 4, "model.max_model_len": 128},
    )
    made = Engine(config, random_model(2, 0))
    for index in range(2):
        tokens = [*range(10, 22), 30 + index]
        sampling = SamplingParams(max_tokens=12, ignore_eos=True)
        made.add_request(
            RequestSpec(token_ids=tokens, sampling=sampling, label=f"<reader> {index + 1}")
        )
        made.step()
    return made
