"""The normalised Hadamard rotation of head vectors, which is its own inverse."""

from functools import lru_cache

import torch
from torch import Tensor


def hadamard(x: Tensor) -> Tensor:
    """Rotate fp32 x [..., D] (D a power of two) by H / sqrt(D), H the Sylvester matrix.

    Additions only, in a fixed order: the result does not depend on how many vectors come at once,
    as that of a matrix product would, so that a streamed page equals one encoded in one go.
    """
    dim = x.shape[-1]
    step = 1
    while step < dim:
        one, two = x.unflatten(-1, (-1, 2, step)).unbind(-2)
        x = torch.stack((one + two, one - two), -2).flatten(-3)
        step *= 2
    return x * dim**-0.5


@lru_cache(maxsize=16)  # a constant, needed by every layer of every step
def hadamard_matrix(dim: int, device: torch.device) -> Tensor:
    """H / sqrt(D) as fp32 [D, D], symmetric; for queries and results, of which few come at once."""
    return hadamard(torch.eye(dim)).to(device)
