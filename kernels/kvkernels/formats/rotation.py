"""The normalised Hadamard rotation of head vectors, which is its own inverse."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SMALL = 1 << 13  # numbers below which numpy's calls cost less than torch's


def hadamard(x: Tensor) -> Tensor:
    """Rotate fp32 x [..., D] (D a power of two) by H / sqrt(D), H the Sylvester matrix.

    Additions only, in a fixed order: the result does not depend on how many vectors come at once,
    as that of a matrix product would, so that a streamed page equals one encoded in one go.
    """
    dim = x.shape[-1]
    if x.numel() <= SMALL and x.device.type == "cpu":
        return torch.from_numpy(_hadamard_small(x.numpy()))
    step = 1
    while step < dim:
        one, two = x.unflatten(-1, (-1, 2, step)).unbind(-2)
        x = torch.stack((one + two, one - two), -2).flatten(-3)
        step *= 2
    return x * dim**-0.5


def _hadamard_small(x: np.ndarray) -> np.ndarray:
    """The same additions in numpy, bit for bit."""
    dim = x.shape[-1]
    step = 1
    while step < dim:
        pairs = x.reshape(*x.shape[:-1], -1, 2, step)
        out = np.empty(pairs.shape, np.float32)
        np.add(pairs[..., 0, :], pairs[..., 1, :], out=out[..., 0, :])
        np.subtract(pairs[..., 0, :], pairs[..., 1, :], out=out[..., 1, :])
        x = out.reshape(x.shape)
        step *= 2
    return x * np.float32(dim**-0.5)


@lru_cache(maxsize=16)  # a constant, needed by every layer of every step
def hadamard_matrix(dim: int, device: torch.device) -> Tensor:
    """H / sqrt(D) as fp32 [D, D], symmetric; for queries and results, of which few come at once."""
    return hadamard(torch.eye(dim)).to(device)
