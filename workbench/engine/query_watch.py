"""Queries of running requests, and what they say of the tokens that are stored."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from kvkernels.common import rotate
from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.cache.block_state import kind_parts
from workbench.cache.geometry import Group
from workbench.cache.request_blocks import RequestBlocks
from workbench.engine.runner import ForwardBatch
from workbench.engine.step_attention import SeeQueries
from workbench.request import Request
from workbench.structural.retention.expected import (
    QueryStatistics,
    expected_scores,
    mean_rotation,
)

if TYPE_CHECKING:
    from workbench.engine.cache_stack import CacheStack
    from workbench.engine.engine import Engine


class QueryWatch:
    """Keeps statistics of each request's queries while a policy wants them."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.statistics: dict[str, QueryStatistics] = {}
        self._table: tuple[Tensor, Tensor] | None = None

    def begin(self, batch: ForwardBatch) -> SeeQueries:
        """What a step's attention calls with the queries of each layer."""
        least = self._engine.config.retention.sink_tokens  # first tokens' queries are outliers
        for gone in self.statistics.keys() - self._engine.requests.keys():
            del self.statistics[gone]
        rows, picked = 0, []
        for request, count in zip(batch.requests, batch.q_lens.tolist(), strict=True):
            known = self._of(request)
            first = max(known.next_position, least, request.num_computed_tokens)
            skipped = min(count, first - request.num_computed_tokens)
            picked.append((known, slice(rows + skipped, rows + count)))
            rows += count
            known.next_position = max(known.next_position, request.num_computed_tokens + count)
        positions = torch.from_numpy(batch.positions).to(self._engine.device)

        def see(layer: int, q: Tensor) -> None:
            before = self._unrotated(q, positions)
            for known, part in picked:
                known.add(layer, before[part])

        return see

    def expected(self, request: Request) -> list[np.ndarray]:
        """Score of each group's stored tokens, float [stored_len]: mean over layers and heads."""
        engine, stack = self._engine, self._engine.stack
        frequencies = engine.model.arch.inverse_frequencies()
        rotation = mean_rotation(frequencies, request.num_computed_tokens, engine.device)
        blocks = stack.manager.requests[request.request_id]
        return [
            self._group_scores(request, blocks, group, rotation) for group in stack.geometry.groups
        ]

    def _group_scores(
        self,
        request: Request,
        blocks: RequestBlocks,
        group: Group,
        rotation: tuple[Tensor, Tensor],
    ) -> np.ndarray:
        engine, settings = self._engine, self._engine.config.retention
        known, index = self._of(request), group.index
        stored = blocks.positions(index)
        keys, values = stored_vectors(engine.stack, blocks, index)
        table = engine.stack.runner.rope_table
        if table is not None:
            places = stored
            if engine.stack.runner.mode == "compact":
                places = request.num_computed_tokens - len(stored) + np.arange(len(stored))
            at = torch.from_numpy(places.astype(np.int64)).to(keys.device)
            cos, sin = (part[at][:, None, None] for part in table)
            keys = rotate(keys, cos, sin)
        share = engine.model.arch.num_heads // engine.stack.geometry.num_kv_heads
        heads = [head * share + each for head in group.kv_heads for each in range(share)]
        counts = torch.from_numpy(np.log(blocks.counts(index))).to(keys.device)
        total = torch.zeros(len(stored), device=keys.device)
        for number, layer in enumerate(group.layers):
            mean, covariance = known.future(layer, rotation)
            total += expected_scores(
                keys[:, number],
                values[:, number],
                mean[heads],
                covariance[heads],
                log_count=counts,
                num_first=int((stored < settings.sink_tokens).sum()),
                reduce=settings.gqa_reduce,
            ).mean(0)
        scores: np.ndarray = (total / len(group.layers)).cpu().numpy()
        return scores

    def forget(self, request_id: str) -> None:
        """The request is observed anew, or over."""
        self.statistics.pop(request_id, None)

    @property
    def num_bytes(self) -> int:
        """Bytes of all statistics."""
        return sum(known.num_bytes for known in self.statistics.values())

    def _of(self, request: Request) -> QueryStatistics:
        known = self.statistics.get(request.request_id)
        if known is None:
            arch, device = self._engine.model.arch, self._engine.device
            known = QueryStatistics(arch.num_layers, arch.num_heads, arch.head_dim, device)
            self.statistics[request.request_id] = known
        return known

    def _unrotated(self, q: Tensor, positions: Tensor) -> Tensor:
        """Queries [N, Hq, D] before RoPE, fp32."""
        wide = q.to(torch.float32)
        if self._engine.stack.runner.mode != "stored":
            return wide
        longest = self._engine.config.model.max_model_len
        if self._table is None or len(self._table[0]) < longest:
            self._table = self._engine.model.decoder.rope_tables(longest)
        cos, sin = (part[positions][:, None] for part in self._table)
        return rotate(wide, cos, -sin)


def stored_vectors(stack: "CacheStack", blocks: RequestBlocks, group: int) -> tuple[Tensor, Tensor]:
    """K and V of a group's stored slots as its pages hold them, fp32 [stored_len, L, H, D] each."""
    pool, size, stored = stack.pool, blocks.block_size, int(blocks.stored_len[group])
    table = blocks.blocks(group)[: -(-stored // size)]
    kinds = pool.page_kinds(table)
    planes: list[Tensor] = []
    for plane in ("k", "v"):
        parts, order = [], []
        for kind in np.unique(kinds).tolist():
            pages, (cls, basis) = np.flatnonzero(kinds == kind), kind_parts(kind)
            parts.append(_vectors(stack, group, table[pages], pool.classes[cls], plane, basis))
            order.append((pages[:, None] * size + np.arange(size)).ravel())
        back = np.argsort(np.concatenate(order))[:stored]
        joined = torch.cat(parts)
        planes.append(joined[torch.from_numpy(back).to(joined.device)])
    return planes[0], planes[1]


def _vectors(
    stack: "CacheStack", group: int, blocks: np.ndarray, spec: PageSpec, plane: str, basis: int
) -> Tensor:
    """One plane of blocks, fp32 [n * S, L, H, D], from wherever it lies."""
    if plane in spec.planes or stack.values is None:
        return stack.store.vectors(group, stack.pool.offset[blocks], spec, plane, basis)
    below = spec.part(plane)
    pages = torch.empty((len(blocks), below.page_bytes), dtype=torch.uint8)
    for layer, part in enumerate(pages.split(below.layer_bytes, 1)):
        stack.values.read(blocks, layer, part.numpy())
    return stack.store.decode(group, pages.to(stack.store.device), below, plane)
