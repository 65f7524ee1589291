"""Packs slots that stay into fewer pages; with merging, those that go leave them their values."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from kvkernels.common import rotate
from torch import Tensor

from workbench.request import Request
from workbench.structural.retention.merging import (
    keyed_draws,
    merge_into_kept,
    spread_into_following,
)

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


def move_slots(
    engine: "Engine",
    request: Request,
    group: int,
    first: int,
    source: list[int],
    slots: np.ndarray,
    target: list[int],
) -> None:
    """Pack the kept `slots` of the blocks `source`, pages from `first` on, into `target`."""
    stack = engine.stack
    spec, offset = stack.specs.full[group], stack.pool.offset
    merged = None
    if engine.config.retention.merge != "off":
        merged = _merge(engine, request, group, first, source, slots)
    stack.store.compact(spec, offset[source], slots, offset[target])
    if stack.runner.bounds is not None:
        stack.runner.bounds.forget(target)  # some are written in place
    if merged is not None:
        stack.store.write_values(group, offset[target], spec, merged[:, None, None])


def _merge(
    engine: "Engine", request: Request, group: int, first: int, source: list[int], slots: np.ndarray
) -> Tensor:
    """Values fp32 [k, D] of the kept slots of one head with what the others leave to them."""
    stack, settings = engine.stack, engine.config.retention
    blocks = stack.manager.requests[request.request_id]
    start = first * blocks.block_size
    positions, counts = blocks.positions(group)[start:], blocks.counts(group)[start:]
    gone = np.setdiff1d(np.arange(len(counts)), slots)
    keys, values = (
        stack.store.vectors(group, stack.pool.offset[source], stack.specs.full[group], plane)
        for plane in ("k", "v")
    )
    keys, values = keys[: len(counts), 0, 0], values[: len(counts), 0, 0]

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(values.device)

    if stack.runner.rope_table is not None:  # stored before RoPE: compared as attention reads them
        compact = stack.runner.mode == "compact"  # only differences of positions count
        at = to_device(np.arange(len(counts)) if compact else positions)
        keys = rotate(keys, *(angles[at] for angles in stack.runner.rope_table))

    if settings.merge == "cam":
        mass = engine.retainer.observers[request.request_id].mass[group, positions]
        params = request.sampling
        name = f"{request.request_id}/{params.sample_index}".encode()
        number = int.from_bytes(hashlib.sha256(name).digest()[:8], "little")
        draws = keyed_draws(params.seed, number, group, positions[gone])
        return spread_into_following(
            values, to_device(mass), to_device(slots), to_device(gone), to_device(draws)
        )
    merged, weight = merge_into_kept(
        keys, values, to_device(counts), to_device(slots), to_device(gone), settings.merge_cosine
    )
    kept = counts.copy()
    kept[slots] = weight.cpu().numpy()
    blocks.set_counts(group, start, kept)  # the tables keep those of the kept slots
    return merged
