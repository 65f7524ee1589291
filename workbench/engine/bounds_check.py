"""Bounds of pages are those of the keys that the pages hold, whatever happened to them."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from workbench.errors import IntegrityError

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


@torch.inference_mode()  # the bounds were made in it
def check_bounds(engine: "Engine") -> None:
    """Raise IntegrityError for a full page of a running request whose valid bounds are wrong."""
    stack = engine.stack
    bounds, size = stack.runner.bounds, stack.manager.block_size
    if bounds is None or bounds.pool is not stack.pool:
        return
    for layer_set in stack.geometry.layer_sets:
        first = sum(layer < bounds.first_layer for layer in layer_set.layers)
        layers = range(first, len(layer_set.layers))
        for group in layer_set.groups if len(layers) else ():
            pos = {
                int(block): blocks.pos[group, page * size : (page + 1) * size]
                for blocks in stack.manager.requests.values()
                for page, block in enumerate(
                    blocks.table[group, : int(blocks.stored_len[group]) // size]
                )
            }
            held = np.array(list(pos), np.int64)
            held = held[~bounds.stale(held)]
            if not len(held):
                continue
            places = np.array([pos[int(block)] for block in held])
            table = stack.runner.rope_table
            wrong = bounds.differing(group, held, layers, pos=places, rope_table=table)
            if len(wrong):
                raise IntegrityError(f"bounds of block {wrong[0]} are not those of its keys")
