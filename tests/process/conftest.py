import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The tests of this folder share a module; pytest's importlib mode leaves sys.path alone.
sys.path.insert(0, str(Path(__file__).parent))

from process_helpers import LAYERS, small_config

from workbench.client import EngineClient


@pytest.fixture(scope="module")
def shared_client() -> Iterator[EngineClient]:
    client = EngineClient.start(small_config(), wait=True, random_layers=LAYERS)
    yield client
    client.close()


@pytest.fixture
def client(shared_client: EngineClient) -> EngineClient:
    shared_client.clear_requests()
    shared_client.play()
    shared_client.set_speed(1.0)
    return shared_client
