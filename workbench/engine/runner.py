"""One forward pass over a scheduled batch: tables, kernels, logits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from kvkernels.api import RopeTable
from torch import Tensor

from workbench.cache.geometry import Geometry
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_bounds import PageBounds
from workbench.cache.page_store import PageStore
from workbench.cache.rope_mode import RopeMode, kernel_rope
from workbench.clock import Clock
from workbench.config import RetentionSettings
from workbench.engine.mass import by_group, mean_norms
from workbench.engine.part_times import PartTimes
from workbench.engine.sparse_reads import SparseReads
from workbench.engine.split_reads import SplitReads
from workbench.engine.step_attention import SeeQueries, StepAttention, StepTiming
from workbench.model.decoder import Decoder
from workbench.request import Request


@dataclass(frozen=True)
class TappedRows:
    """Logits of known tokens that somebody asked for: `rows` of the step's logits."""

    request: Request
    positions: np.ndarray  # int64 [n]
    rows: slice


@dataclass(frozen=True)
class ForwardBatch:
    """What one step computes: R requests, N tokens in request order."""

    requests: list[Request]
    q_lens: np.ndarray  # int32 [R]
    token_ids: np.ndarray  # int64 [N]
    positions: np.ndarray  # int64 [N]
    logit_rows: np.ndarray  # int64 [M], last rows of requests that are complete after this step
    logit_requests: list[Request]
    sampled: list[int] | None = None  # which of the M rows belong to `logit_requests`; None: all
    tapped: tuple[TappedRows, ...] = ()


def make_batch(scheduled: list[tuple[Request, int]], *, tapping: bool = False) -> ForwardBatch:
    """Gather the next tokens of each scheduled request; with `tapping` also the rows it wants."""
    q_lens = np.array([count for _, count in scheduled], np.int32)
    token_ids: list[int] = []
    positions: list[np.ndarray] = []
    logit_rows: list[int] = []
    logit_requests: list[Request] = []
    sampled: list[int] = []
    tapped: list[TappedRows] = []
    for request, count in scheduled:
        start = request.num_computed_tokens
        is_last = start + count == request.num_tokens
        wanted = request.spec.logits_from
        if tapping and wanted is not None and wanted < start + count:
            first = max(start, wanted)
            rows = slice(len(logit_rows), len(logit_rows) + start + count - first)
            tapped.append(TappedRows(request, np.arange(first, start + count), rows))
            offset = len(token_ids) - start
            logit_rows += range(offset + first, offset + start + count - is_last)
        token_ids += request.token_ids[start : start + count]
        positions.append(np.arange(start, start + count, dtype=np.int64))
        if is_last:
            sampled.append(len(logit_rows))
            logit_rows.append(len(token_ids) - 1)
            logit_requests.append(request)
    return ForwardBatch(
        [request for request, _ in scheduled],
        q_lens,
        np.array(token_ids, np.int64),
        np.concatenate(positions),
        np.array(logit_rows, np.int64),
        logit_requests,
        sampled if tapped else None,
        tuple(tapped),
    )


class ModelRunner:
    """Runs batches of one cache; `mass` asks the kernels for attention mass per stored slot."""

    def __init__(
        self,
        decoder: Decoder,
        geometry: Geometry,
        manager: KVCacheManager,
        store: PageStore,
        clock: Clock,
        mode: RopeMode = "stored",
    ) -> None:
        self.decoder = decoder
        self.geometry = geometry
        self.manager = manager
        self.store = store
        self.clock = clock
        self.mode = mode
        self.rope_table: RopeTable | None = None
        if mode != "stored":
            self.rope_table = decoder.rope_tables(manager.max_model_len + manager.block_size)
        self.timing = self._new_timing()
        self.bounds: PageBounds | None = None  # while reads are sparse
        self.split: SplitReads | None = None  # where V of full pages lies below HBM
        self.key_norms: np.ndarray | None = None  # of the newest step, where they were asked for

    @torch.inference_mode()
    def run(
        self,
        batch: ForwardBatch,
        *,
        mass: bool,
        norms: bool = False,
        reduce: str = "mean",
        see: SeeQueries | None = None,
        retention: RetentionSettings | None = None,
        arrive: Callable[[int], None] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(logits fp32 [M, vocab], mass or None).

        mass: fp32 [R, num_groups, T] by stored slot, averaged over a group's layers and heads; the
        query heads of a KV head are reduced by `reduce`. `see` gets the queries of each layer.
        With `norms`, `key_norms` holds the length of each new key, alike: float [N, num_groups].
        `retention` says which pages are read (default: all). `arrive(layer)` is called before the
        pages of a layer are read.
        """
        self.timing = self._new_timing()
        self.timing.forward.start()
        sparse = self._sparse_reads(batch, retention)
        attend = StepAttention(
            self.geometry,
            self.manager,
            self.store,
            self.clock,
            self.timing,
            batch.requests,
            batch.q_lens,
            wants_mass=mass,
            wants_norms=norms,
            positions=batch.positions,
            mode=self.mode,
            rope_table=self.rope_table,
            each_head=mass and reduce == "max",
            see=see,
            sparse=sparse,
            split=self.split,
            arrive=arrive,
        )
        device = self.store.device
        logits = self.decoder.forward(
            torch.from_numpy(batch.token_ids).to(device),
            torch.from_numpy(batch.positions).to(device),
            attend,
            torch.from_numpy(batch.logit_rows).to(device),
            rope=kernel_rope(self.mode),
        )
        for request in sparse.requests if sparse is not None else ():
            # what they compute from here on is no function of the text alone (decision 5)
            self.manager.requests[request.request_id].hashing = False
        self.timing.traffic.settle()
        self.timing.forward.stop()
        self.key_norms = mean_norms(self.geometry, attend.norms) if norms else None
        if not mass:
            return logits, None
        return logits, by_group(self.geometry, attend.masses, self.decoder.arch.num_heads, reduce)

    def _new_timing(self) -> StepTiming:
        forward, attention = (PartTimes(self.clock, self.store.device) for _ in range(2))
        return StepTiming(forward, attention)

    def _sparse_reads(
        self, batch: ForwardBatch, settings: RetentionSettings | None
    ) -> SparseReads | None:
        """Which rows of a batch read sparsely; bounds are kept while that is switched on."""
        if settings is None or settings.sparse == "off":
            self.bounds = None
            return None
        landmarks, known, pool = settings.sparse == "landmarks", self.bounds, self.manager.pool
        kept = self.manager.roles.outlier_pages
        outliers = landmarks and max(settings.sparse_outliers, kept) > 0
        if known is None or known.pool is not pool or known.kind != (landmarks, outliers):
            self.bounds = known = PageBounds(
                pool, self.geometry, self.store, landmarks=landmarks, outliers=outliers
            )
        return SparseReads(
            self.geometry,
            self.manager,
            known,
            batch.requests,
            batch.q_lens,
            settings,
            self.rope_table,
        )
