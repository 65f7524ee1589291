"""Choice of the implementation by device."""

from types import ModuleType

import torch


def select(device: torch.device | str) -> ModuleType:
    """Return the module that implements the operations on `device`: Triton on cuda, else torch."""
    if torch.device(device).type == "cuda":
        from kvkernels import triton_backend

        return triton_backend
    from kvkernels import reference

    return reference
