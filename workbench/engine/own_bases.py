"""Gives requests a basis of their own keys, once their prompt is there (`cache.basis`)."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workbench.errors import IntegrityError
from workbench.request import Request
from workbench.structural.compression.sequence_basis import make_basis, tokens_needed

if TYPE_CHECKING:
    from workbench.engine.cache_stack import CacheStack
    from workbench.engine.engine import Engine


@torch.inference_mode()
def find_basis(stack: "CacheStack", request: Request, num_new: int) -> int:
    """Number of a request's basis, made now if it can be; 0 while its keys still have to wait.

    `num_new`: tokens that were stored in this step, and are not counted as computed yet. The keys
    of the prompt are taken, and of a short one those that follow it until there are enough: the
    same ones in whatever chunks they came.
    """
    blocks = stack.manager.requests[request.request_id]
    if blocks.basis:
        return blocks.basis
    specs = stack.specs.joined
    end = max(request.num_prompt_tokens, *map(tokens_needed, specs))
    if request.num_computed_tokens + num_new < end:
        return 0
    number = max(stack.store.bases, default=0) + 1

    def keys_of(group: int) -> Tensor:
        slots = np.flatnonzero(blocks.positions(group) < end)
        pages = blocks.blocks(group)[: blocks.num_used_pages()[group]]
        spec = stack.specs.open[group]  # all of them: nothing was sealed without a basis
        keys = stack.store.vectors(group, stack.pool.offset[pages], spec, "k")
        return keys[torch.from_numpy(slots).to(keys.device)]

    stack.store.bases[number] = make_basis(stack.geometry, specs, keys_of)
    blocks.basis = number
    return number


def check_bases(engine: "Engine") -> None:
    """Raise IntegrityError unless each basis is of one running request, and so are its pages."""
    stack = engine.stack
    manager, pool = stack.manager, stack.pool
    if not manager.roles.own_basis:
        return
    held = sorted(blocks.basis for blocks in manager.requests.values() if blocks.basis)
    if held != sorted(stack.store.bases):
        raise IntegrityError(
            f"bases {sorted(stack.store.bases)} are kept, and requests have {held}"
        )
    if len(pool.index):
        raise IntegrityError("pages in a basis of one request can be found by others")
    for blocks in manager.requests.values():
        for group, cls in enumerate(manager.classes):
            table = blocks.blocks(group)
            sealed = pool.page_classes(table) == cls
            if (pool.basis[table] != np.where(sealed, blocks.basis, 0)).any():
                raise IntegrityError("a page is not in the basis of its request")
