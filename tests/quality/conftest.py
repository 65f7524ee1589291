"""The tiny random model that the lab's tests run on."""

import pytest
import torch

from workbench.model.load import LoadedModel
from workbench.model.random_launch import random_model


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    """Two layers, 4 query and 2 KV heads, one token a byte, fp32."""
    torch.set_num_threads(1)
    return random_model(2)
