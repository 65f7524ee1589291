"""Bytes of one request's cache: what its tables claim, and what was really written to."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from workbench.quality.results import ByteReport
from workbench.request import Request

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

SENTINEL = -0x5A5A5A5A5A5A5A5B  # int64 that no cache writes by chance eight times in a row
LINE_BYTES = 64  # pages start on cache lines


def prepare(engine: "Engine") -> None:
    """Mark every line of a new engine's arena, so that `byte_report` can see what was written."""
    _words(engine).fill_(SENTINEL)


def touched_bytes(engine: "Engine") -> int:
    """Bytes of the lines that no longer hold the mark."""
    lines = _words(engine).view(-1, LINE_BYTES // 8)
    return int((lines != SENTINEL).any(-1).sum()) * LINE_BYTES


def held_bytes(engine: "Engine") -> int:
    """Bytes of the lines that no longer hold the mark and lie in blocks that some table holds.

    From the pool's references and offsets, a line counted once: nothing is asked of a request.
    """
    pool = engine.stack.pool
    written = (_words(engine).view(-1, LINE_BYTES // 8) != SENTINEL).any(-1)
    held = torch.zeros_like(written)
    for block in np.flatnonzero(pool.ref_cnt > 0):
        first = int(pool.offset[block])
        end = first + pool.classes[pool.page_class(int(block))].page_bytes
        held[first // LINE_BYTES : -(-end // LINE_BYTES)] = True
    return int((written & held).sum()) * LINE_BYTES


def byte_report(engine: "Engine", request: Request) -> ByteReport:
    """Count a running request's bytes in all groups."""
    manager = engine.stack.manager
    blocks = manager.requests[request.request_id]
    size = manager.block_size
    allocated = live = metadata = elements = bounds = 0
    kept = engine.stack.runner.bounds
    for group in range(len(manager.classes)):
        held = np.array(blocks.held(group))
        if kept is not None:
            layers = len(engine.stack.geometry.groups[group].layers)
            bounds += len(held) * layers * kept.page_bytes(group)
        # spares behind the table's pages hold nothing yet
        slots = np.clip(int(blocks.stored_len[group]) - size * np.arange(len(held)), 0, size)
        for cls, filled in zip(manager.pool.page_classes(held), slots, strict=True):
            spec = manager.pool.classes[cls]
            allocated += spec.page_bytes
            metadata += spec.metadata_bytes
            live += int(filled) * spec.page_bytes // size
            elements += int(filled) * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2
    arch, count = engine.model.arch, request.num_computed_tokens
    bf16 = count * arch.num_layers * arch.num_kv_heads * arch.head_dim * 2 * 2
    return ByteReport(
        allocated=allocated,
        live=live,
        metadata=metadata,
        touched=touched_bytes(engine),
        bits_per_element=allocated * 8 / elements,
        ratio_to_bf16=bf16 / allocated,
        tokens_per_mib=count / (allocated / 2**20),
        tokens_stored=float(blocks.stored_len.mean()),
        num_tokens=count,
        bounds=bounds,
        read_per_token=engine.stack.runner.timing.traffic.bytes_per_token,
    )


def _words(engine: "Engine") -> torch.Tensor:
    arena = engine.stack.store.arena
    whole = arena.numel() // LINE_BYTES * LINE_BYTES
    return arena[:whole].view(torch.int64)
