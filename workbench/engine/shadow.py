"""The shadow: one running request computed in full precision too, token for token.

It follows the same chunk schedule with the same kernels and weights, but with its own cache: pages
in the compute dtype, nothing evicted, nothing shared. So the identity setting gives KL 0 exactly,
and whatever differs is the price of the settings. The engine's choice is fed to both. As in the
quality lab, only positions that read something compressed or evicted count, once there are any.

The twin runs alone. Beside other requests the engine's products have other shapes, which bf16
rounds otherwise: KL 8e-4 and 1 % of the tokens for six of the default model, 4e-8 in fp32.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workbench.cache.block_pool import BlockPool
from workbench.cache.geometry import build_geometry
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_roles import PageRoles
from workbench.cache.page_store import PageStore
from workbench.cache.prefix_index import HashIndex
from workbench.cache.request_blocks import PrefixHit
from workbench.engine.compressed_reads import full_format, reads_compressed
from workbench.engine.runner import ForwardBatch, ModelRunner, make_batch
from workbench.request import Request
from workbench.views import ShadowView

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

CATCH_UP_TOKENS = 32


@dataclass
class _Scores:
    """Sums over positions; KL(full || ours) in nats."""

    count: int = 0
    kl: float = 0.0
    num_agreeing: int = 0

    def add(self, kl: float, agrees: bool) -> None:
        """One position more."""
        self.count += 1
        self.kl += kl
        self.num_agreeing += agrees


class Shadow:
    """Twin of one request. Its work is outside the engine's batch and its metrics."""

    def __init__(self, engine: "Engine", request: Request) -> None:
        self.request = request
        self._engine = engine
        self._ended = False
        self._kl_last = 0.0
        self._all, self._compressed = _Scores(), _Scores()
        self._first_differing = -1
        self._differing_text = ""
        longest = min(
            engine.config.model.max_model_len,
            request.num_prompt_tokens + request.sampling.max_tokens,
        )
        arch = engine.model.arch
        geometry = build_geometry(
            "model",
            num_layers=arch.num_layers,
            num_kv_heads=arch.num_kv_heads,
            head_dim=arch.head_dim,
        )
        name = full_format(engine.model.decoder.compute_dtype)
        size = engine.config.cache.block_size
        spec = geometry.groups[0].page_spec(geometry.head_dim, size, name, name)
        pages = -(-longest // size) + 1
        pool = BlockPool(
            num_slabs=1,
            slab_bytes=pages * spec.page_bytes,
            smallest_page_bytes=spec.page_bytes,
            index=HashIndex(_ignore, _ignore),
            before_evict=_ignore,
        )
        manager = KVCacheManager(
            pool=pool,
            geometry=geometry,
            roles=PageRoles(size, [pool.class_of(spec)]),
            max_model_len=longest + size,
            format_label=name,
            root_key=lambda request: b"",
        )
        store = PageStore(pages * spec.page_bytes, engine.device)
        self._manager = manager
        self._runner = ModelRunner(engine.model.decoder, geometry, manager, store, engine.clock)
        self._twin = Request(request.request_id, request.spec, [], 0.0)
        self._twin.token_ids = request.token_ids
        self._twin.num_prompt_tokens = request.num_prompt_tokens
        manager.admit(self._twin, PrefixHit((), name, 0), longest)
        manager.requests[request.request_id].hashing = False
        self.num_bytes = store.num_bytes

    def follow(self, batch: ForwardBatch, logits: Tensor, tokens: list[int]) -> None:
        """After an engine step: compute what the request computed, and compare its logits."""
        if self._ended or self.request not in batch.requests:
            return
        row = batch.requests.index(self.request)
        count = int(batch.q_lens[row])
        target = self.request.num_computed_tokens
        if not self._catch_up(target - count):
            return
        mine = self._compute(target - self._twin.num_computed_tokens, wants_logits=True)
        if self.request in batch.logit_requests and mine is not None:
            at = batch.logit_requests.index(self.request)
            self._score(mine[0], logits[at], tokens[at])

    def _catch_up(self, target: int) -> bool:
        """Compute what the request had before the shadow began; whether that is done.

        In the scheduler's chunks for the prompt and one by one for the rest, because another split
        rounds differently; at most CATCH_UP_TOKENS single ones a step, so that no step stalls.
        """
        chunk = self._engine.config.scheduling.chunk_tokens
        prompt = self.request.num_prompt_tokens + len(self.request.spec.resume_tokens)
        for _ in range(CATCH_UP_TOKENS):
            done = self._twin.num_computed_tokens
            if done >= target:  # more than target: the request was preempted and is recomputed
                break
            count = min(chunk, prompt - done) if done < prompt else 1
            self._compute(min(count, target - done), wants_logits=False)
        return self._twin.num_computed_tokens >= target

    def _compute(self, count: int, *, wants_logits: bool) -> Tensor | None:
        if count <= 0:
            return None
        batch = make_batch([(self._twin, count)])
        logits, _ = self._runner.run(batch, mass=False)
        self._manager.commit(self._twin, count)
        self._twin.num_computed_tokens += count
        return logits if wants_logits and len(logits) else None

    def _score(self, full: Tensor, ours: Tensor, token: int) -> None:
        log_full = torch.log_softmax(full.float(), -1)
        log_ours = torch.log_softmax(ours.float(), -1)
        self._kl_last = max(0.0, float((log_full.exp() * (log_full - log_ours)).sum()))
        agree = int(full.argmax()) == int(ours.argmax())
        self._all.add(self._kl_last, agree)
        position = np.array([self.request.num_computed_tokens - 1])
        if reads_compressed(self._engine, self.request, position)[0]:
            self._compressed.add(self._kl_last, agree)
        if not agree and self._first_differing < 0:
            self._first_differing = self.request.num_tokens
            text = self._engine.model.tokenizer.token_text
            self._differing_text = f"{text(int(full.argmax()))} → {text(int(ours.argmax()))}"

    def end(self) -> None:
        """The request has ended; the figures stay."""
        self._ended = True

    def view(self) -> ShadowView:
        """Figures so far; KL(full || ours) in nats per token."""
        counted = self._compressed if self._compressed.count else self._all
        count = max(1, counted.count)
        return ShadowView(
            request_id=self.request.request_id,
            num_scored_tokens=self._compressed.count,
            num_positions=self._all.count,
            kl_mean=counted.kl / count,
            kl_last=self._kl_last,
            agreement=counted.num_agreeing / count,
            first_differing_token=self._first_differing,
            differing_text=self._differing_text,
            state="finished" if self._ended else "running",
        )


def _ignore(row: object) -> None:
    """A shadow publishes and evicts nothing."""
