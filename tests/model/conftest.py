"""Shared pieces of the model tests: reference answers, the real model in each format."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workbench.model.fetch import fetch
from workbench.model.gguf_loader import GgufSource
from workbench.model.load import LoadedModel, load_model

# The tests of this folder share modules; pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def reference() -> dict[str, np.ndarray]:
    """What transformers answered (tests/peers/make_model_reference.py)."""
    with np.load(Path(__file__).parent / "reference.npz") as file:
        return dict(file)


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    """The default model, fetched if it is not cached."""
    return fetch()


@pytest.fixture(scope="session")
def gguf_source(gguf_path: Path) -> GgufSource:
    """The default model's file, opened once: reading its metadata takes seconds."""
    return GgufSource(gguf_path)


@pytest.fixture(scope="session")
def real_model(gguf_path: Path) -> Callable[[str], LoadedModel]:
    """The default model by weight format, loaded once a session."""
    loaded: dict[str, LoadedModel] = {}

    def load(weight_format: str) -> LoadedModel:
        if weight_format not in loaded:
            loaded[weight_format] = load_model(str(gguf_path), weight_format)
        return loaded[weight_format]

    return load


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, so that nothing converted before is found."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(folder))
    return folder


@pytest.fixture
def peers_python() -> Path:
    """The peers' interpreter, for long tests."""
    path = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
    if not path.exists():
        pytest.skip("no .venv-peers: bash tests/peers/setup.sh peers")
    return path
