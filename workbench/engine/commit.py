"""What a step computed becomes part of the cache: committed, sealed where full, published."""

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch
from kvkernels.bounds import least_cosines
from kvkernels.pages import copy_plane

from workbench.cache.sealing import seal, seal_with_basis
from workbench.engine.own_bases import find_basis
from workbench.engine.runner import ForwardBatch
from workbench.request import Request
from workbench.spatial.hierarchy.values import ValuesBelow

if TYPE_CHECKING:
    from workbench.engine.cache_stack import CacheStack
    from workbench.engine.engine import Engine


def commit(engine: "Engine", batch: ForwardBatch) -> None:
    """Count the batch's tokens as stored, and let full blocks be found if prefixes are shared."""
    manager = engine.stack.manager
    for request, count in zip(batch.requests, batch.q_lens.tolist(), strict=True):
        manager.commit(request, count)
        if manager.roles.seals:
            judge = functools.partial(_likeness, engine, request)
            if manager.roles.own_basis:
                basis = find_basis(engine.stack, request, count)
                if basis:
                    seal_with_basis(
                        manager, request, functools.partial(_encode, engine, basis), judge
                    )
            else:
                seal(manager, request, functools.partial(_encode, engine, 0), judge)
        engine.metrics.computed(request, count)
        request.num_computed_tokens += count
        if engine.scheduler.prefix_caching:
            known = manager.requests[request.request_id].num_hashed
            if manager.publish(request, request.num_computed_tokens):
                engine.moves.published(request, known)
    if engine.stack.values is not None:
        engine.stack.values.sweep()


def roll_back(engine: "Engine") -> bool:
    """Undo a step that read damaged bytes: nothing of it counts, and who holds them recomputes.

    Pages that came up by layers, or values below. False where all was well: the step stands.
    """
    failed = engine.fetcher.end_layers()
    for request in failed:
        engine.scheduler.preempt(request, reason="lost_pages", damaged=True)
    return _forget_values(engine) or bool(failed)


def _forget_values(engine: "Engine") -> bool:
    """Whether values below turned out to be lost, and are forgotten with who holds them."""
    values, manager = engine.stack.values, engine.stack.manager
    if values is None or not values.lost:
        return False
    lost = sorted(values.lost)
    for request in list(engine.scheduler.running):
        held = manager.requests[request.request_id].all_blocks()
        if np.isin(held, lost).any():
            engine.scheduler.preempt(request, reason="lost_values", damaged=True)
    for block in lost:
        row = engine.stack.pool.row_of[block]
        if row is not None:
            engine.stack.pool.forget(row)
    values.lost.clear()
    values.sweep()
    return True


def _encode(engine: "Engine", basis: int, group: int, source: list[int], target: list[int]) -> int:
    """Encode full pages of an open class into pages of their final one; how many it did."""
    stack = engine.stack
    pool = stack.pool
    old = pool.classes[pool.page_class(source[0])]
    if stack.values is not None:
        return _split(stack, stack.values, basis, group, source, target)
    stack.store.recode(
        group,
        stack.store.gather(pool.offset[source], old),
        old,
        stack.specs.full[group],
        pool.offset[target],
        np.full(len(source), engine.config.cache.block_size, np.int64),
        basis,
    )
    return len(source)


@torch.inference_mode()
def _likeness(engine: "Engine", request: Request, group: int, pages: np.ndarray) -> np.ndarray:
    """Least cosine of a key of each full page to the page's mean key, fp32 [n]."""
    stack, size = engine.stack, engine.config.cache.block_size
    blocks = stack.manager.requests[request.request_id]
    found = np.empty(len(pages), np.float32)
    ids = blocks.table[group, pages]
    classes = stack.pool.page_classes(ids)
    places = blocks.pos[group].reshape(-1, size)[pages]
    for cls in np.unique(classes).tolist():
        mine, spec = classes == cls, stack.pool.classes[cls]
        cosines = least_cosines(
            stack.store.gather(stack.pool.offset[ids[mine]], spec),
            spec,
            stack.store.state(group, spec),
            pos=torch.from_numpy(places[mine].astype(np.int64)).to(stack.store.device),
            rope_table=stack.runner.rope_table,
        )
        found[mine] = cosines.cpu().numpy()
    return found


def _split(
    stack: "CacheStack",
    values: ValuesBelow,
    basis: int,
    group: int,
    source: list[int],
    target: list[int],
) -> int:
    """Encode full pages, their K into others and their V below; ends where V finds no room."""
    pool, store = stack.pool, stack.store
    old, both, alone = (
        pool.classes[pool.page_class(source[0])], stack.specs.joined[group], stack.specs.full[group]
    )  # fmt: skip
    pages = store.encode(group, store.gather(pool.offset[source], old), old, both, basis)
    keys, below = (
        torch.zeros((len(source), spec.page_bytes), dtype=torch.uint8, device=store.device)
        for spec in (alone, both.part("v"))
    )
    copy_plane(pages, both, "k", keys, alone)
    copy_plane(pages, both, "v", below, both.part("v"))
    done = 0
    for block, page in zip(target, below.cpu().numpy(), strict=True):
        if not values.put(block, page, both.num_layers):
            break
        done += 1
    store.put(pool.offset[target[:done]], alone, keys[:done])
    return done
