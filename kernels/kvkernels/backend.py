"""Choice of the implementation by device."""

from importlib import import_module
from types import ModuleType

import torch


def select(device: torch.device | str) -> ModuleType:
    """Return the module that implements the operations on `device`: Triton on cuda, else torch."""
    if torch.device(device).type == "cuda":
        return import_module("kvkernels.triton_backend")
    return import_module("kvkernels.reference")
