"""Ranks by layer for a budget: each next coordinate goes where it keeps most.

What a direction keeps is its share of the mean square of its layer's and head's vectors, K and V
alike. The shares of a layer fall with the rank, so that taking the largest first is the best sum.
Palu weighs layers by Fisher information instead; this needs no gradients.
"""

import numpy as np
from kvkernels.formats.low_rank import RANK_UNIT

from workbench.errors import SettingError
from workbench.structural.compression.calibration import Calibration


def choose_ranks(known: Calibration, mean_rank: int, heads: int = 1) -> dict[int, int]:
    """Rank of each layer, multiples of 4 a joined head, whose mean is at most `mean_rank`.

    Raises SettingError for a mean below 4 a head or above the width of the joined heads.
    """
    unit = RANK_UNIT * heads
    power = np.stack([known.power(plane, heads).double().numpy() for plane in ("k", "v")])
    dim, layers = power.shape[-1], power.shape[1]  # power [2, L, H, D]
    if not unit <= mean_rank <= dim:
        raise SettingError(f"a mean rank of {mean_rank} is out of range: {unit} to {dim}")
    shares = power / np.maximum(power.sum(-1, keepdims=True), 1e-30)
    whole = dim // unit * unit
    units = shares[..., :whole].reshape(*shares.shape[:-1], -1, unit).sum(-1)
    gains = units.mean((0, 2))  # [L, units]
    taken = np.ones(layers, int)
    for _ in range(mean_rank * layers // unit - layers):
        open_layers = np.flatnonzero(taken < gains.shape[1])
        best = open_layers[np.argmax(gains[open_layers, taken[open_layers]])]
        taken[best] += 1
    return {layer: int(count) * unit for layer, count in enumerate(taken)}


def kept_share(known: Calibration, ranks: dict[int, int], heads: int = 1) -> float:
    """Share of the mean square of K and V that the ranks keep, mean over planes, layers, heads."""
    shares = []
    for plane in ("k", "v"):
        power = known.power(plane, heads).double()
        for layer, rank in ranks.items():
            shares.append(power[layer, :, :rank].sum(-1) / power[layer].sum(-1).clamp_min(1e-30))
    return float(np.mean([float(share.mean()) for share in shares]))
