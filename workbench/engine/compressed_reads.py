"""Which queries of a request read anything that is not as a full-precision cache has it."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from workbench.request import Request

if TYPE_CHECKING:
    from workbench.cache.kv_cache_manager import KVCacheManager
    from workbench.engine.engine import Engine


def full_format(compute_dtype: torch.dtype) -> str:
    """The page format that keeps what was computed as it is."""
    return "fp32" if compute_dtype == torch.float32 else "bf16"


def reads_compressed(engine: "Engine", request: Request, positions: np.ndarray) -> np.ndarray:
    """Which query positions read at least one entry that is not as the full cache has it.

    `positions` int [n], computed by the step that has just been committed; bool [n]. Pages of a
    lossy format count once they are full where the newest tokens wait exactly until then. A lineage
    tells what bytes went through before: a recode, a lossy codec, a prefix with holes.
    """
    manager = engine.stack.manager
    blocks = manager.requests[request.request_id]
    exact = {"fp32", full_format(engine.model.decoder.compute_dtype)}
    before = [part for part in blocks.lineage.split("<") if part != manager.keys.format_label]
    if (
        engine.config.retention.sparse != "off"
        or bool((blocks.stored_len < request.num_computed_tokens).any())
        or not all(_is_exact(part, exact) for part in before)
    ):
        return np.ones(len(positions), bool)
    roles = manager.roles
    if not _any_lossy(manager, roles.full, exact):
        return np.zeros(len(positions), bool)
    num_exact = roles.sink_pages  # at least one page waits exactly until it is full, or none does
    if not _any_lossy(manager, roles.open, exact):
        num_exact += 1 + roles.residual_pages
    later: np.ndarray = positions >= manager.block_size * num_exact
    return later


def _any_lossy(manager: "KVCacheManager", classes: list[int], exact: set[str]) -> bool:
    specs = [manager.pool.classes[cls] for cls in classes]
    return any({spec.k_format, spec.v_format} - exact for spec in specs)


def _is_exact(part: str, exact: set[str]) -> bool:
    """Whether one part of a lineage is a format that changes nothing (`bf16@model`)."""
    formats, _, rest = part.partition("@")
    return bool(rest) and "[" not in rest and set(formats.split("/")) <= exact
