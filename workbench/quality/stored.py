"""Which entries a request has in its pages, and what a reader would get back from them."""

import numpy as np
import torch
from kvkernels.layout import PageSpec
from kvkernels.pages import decode_pages
from torch import Tensor

from workbench.cache.block_state import kind_parts
from workbench.engine.engine import Engine
from workbench.request import Request


def stored_slots(engine: Engine, num_tokens: int, new: np.ndarray) -> np.ndarray:
    """Whether each of the first tokens is stored, bool [L, Hkv, num_tokens].

    For the one running request; `new` positions of the running step count as stored.
    """
    geometry, manager = engine.stack.geometry, engine.stack.manager
    (blocks,) = manager.requests.values()
    out = np.zeros((geometry.num_layers, geometry.num_kv_heads, num_tokens), bool)
    for group in geometry.groups:
        places = blocks.positions(group.index)
        row = np.zeros(num_tokens, bool)
        row[places[places < num_tokens]] = True
        row[new] = True
        out[np.ix_(group.layers, group.kv_heads)] = row
    return out


def stored_kv(engine: Engine, request: Request) -> tuple[Tensor, Tensor]:
    """Stored K and V decoded to fp32 [L, num_tokens, Hkv, D]; zero where nothing is stored.

    By the format's own recode to fp32 pages, the path a live change of format takes.
    """
    stack = engine.stack
    geometry, manager = stack.geometry, stack.manager
    blocks = manager.requests[request.request_id]
    shape = (geometry.num_layers, request.num_tokens, geometry.num_kv_heads, geometry.head_dim)
    planes = tuple(torch.zeros(shape, device=engine.device) for _ in range(2))
    size = manager.block_size
    for group in geometry.groups:
        table = blocks.blocks(group.index)[: blocks.num_used_pages()[group.index]]
        places = torch.from_numpy(blocks.positions(group.index).astype(np.int64))
        heads = torch.tensor(group.kv_heads)
        kinds = manager.pool.page_kinds(table)
        for kind in np.unique(kinds).tolist():
            pages, (cls, basis) = np.flatnonzero(kinds == kind), kind_parts(kind)
            at = (pages[:, None] * size + np.arange(size)).ravel()
            held = at < len(places)
            slots = held.reshape(-1, size).sum(1)
            where = places[at[held]]
            spec, offsets = manager.pool.classes[cls], manager.pool.offset[table[pages]]
            decoded = _decode(engine, group.index, spec, offsets, slots, basis)
            for plane, values in zip(planes, decoded, strict=True):
                for index, layer in enumerate(group.layers):
                    plane[layer][where[:, None], heads] = values[index][torch.from_numpy(held)]
    return planes[0], planes[1]


def _decode(
    engine: Engine, group: int, spec: PageSpec, offsets: np.ndarray, slots: np.ndarray, basis: int
) -> list[Tensor]:
    """K and V fp32 [L, pages * S, H, D] of a group's pages."""
    store = engine.stack.store
    wide = PageSpec(spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.block_size,
                    "fp32", "fp32")  # fmt: skip
    arena = torch.zeros(len(offsets) * wide.page_bytes, dtype=torch.uint8, device=store.device)
    targets = torch.arange(len(offsets), device=store.device) * wide.page_bytes
    sources = torch.from_numpy(np.asarray(offsets, np.int64)).to(store.device)
    store.kernels.recode_pages(
        arena,
        spec,
        sources,
        store.state(group, spec, basis),
        wide,
        targets,
        store.state(group, wide),
        store.scratch,
        source=store.arena,
        num_slots=torch.from_numpy(slots.astype(np.int64)).to(store.device),
    )
    pages = arena.view(len(offsets), wide.page_bytes)
    state = store.state(group, wide)
    return [
        decode_pages(pages, wide, plane, state).permute(1, 0, 3, 2, 4).flatten(1, 2)
        for plane in ("k", "v")  # [n, L, H, S, D] -> [L, n * S, H, D]
    ]
