"""Distances between two sets of logits."""

from typing import Any

import numpy as np
from torch import Tensor


def max_difference(a: Any, b: Any) -> float:
    """Largest absolute difference of two arrays."""
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def kl_to(exact: Tensor, other: Tensor) -> float:
    """Mean Kullback-Leibler divergence in nats from the exact to the other distribution."""
    p, q = exact.log_softmax(-1), other.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
