"""The engine with fp32 pages whose contents come from a float64 scheme instead of a codec."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from kvkernels.layout import PageSpec
from kvkernels.pages import plane_view
from torch import Tensor

from workbench.engine.engine import Engine
from workbench.model.load import LoadedModel
from workbench.quality.engines import Changes, lab_engine
from workbench.quality.hooks import AttendHook, hooked
from workbench.quality.numpy_schemes import Encode, Scheme

FP32_PAGES: Changes = {"cache.k_format": "fp32", "cache.v_format": "fp32"}


@contextmanager
def twin_engine(
    model: LoadedModel, scheme: Scheme, num_tokens: int, limit: int | None = None
) -> Iterator[Engine]:
    """A fresh engine for one window that stores what `scheme` makes of K and V, as fp32.

    Schemes of single tokens act as they are written. Schemes of runs act once the step that filled
    a run is over, because until then its tokens wait in full precision. `limit`: tokens from this
    position on (where a step begins) stay exact.
    """
    changes: Changes = FP32_PAGES | {"cache.block_size": 32}
    if scheme.pre_rope:  # nothing is evicted, so that ranks are positions
        changes["retention.positions"] = "compact"
    with lab_engine(model, changes, num_tokens) as engine:
        last = num_tokens if limit is None else limit
        hook = _AtWrite(scheme, last) if scheme.tokens == 1 else _AfterStep(scheme, last, engine)
        with hooked(engine, hook):
            yield engine


class _AtWrite(AttendHook):
    """Encodes K and V on their way into the pages."""

    def __init__(self, scheme: Scheme, limit: int) -> None:
        self._scheme = scheme
        self._limit = limit

    def begin(self, positions: Tensor) -> None:
        self._acts = int(positions[0]) < self._limit

    def before(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if not self._acts:
            return k, v
        scheme = self._scheme.of(layer)
        return _encoded(k, scheme.encode_k), _encoded(v, scheme.encode_v)


class _AfterStep(AttendHook):
    """Encodes whole runs of tokens in their pages before the next step reads them."""

    def __init__(self, scheme: Scheme, limit: int, engine: Engine) -> None:
        self._scheme = scheme
        self._limit = limit
        self._engine = engine
        self._done = 0  # pages that are encoded

    def begin(self, positions: Tensor) -> None:
        manager = self._engine.stack.manager
        (blocks,) = manager.requests.values()
        (cls,) = manager.classes  # one group: the whole model
        spec = manager.pool.classes[cls]
        if spec.block_size != self._scheme.tokens:
            raise ValueError(f"a run of {self._scheme.tokens} tokens needs pages of that size")
        full = min(int(positions[0]), self._limit) // spec.block_size
        for block in blocks.blocks(0)[self._done : full]:
            start = int(manager.pool.offset[block])
            self._encode(self._engine.stack.store.arena[start : start + spec.page_bytes], spec)
        self._done = max(self._done, full)

    def _encode(self, page: Tensor, spec: PageSpec) -> None:
        for plane, encode in (("k", self._scheme.encode_k), ("v", self._scheme.encode_v)):
            data, _ = plane_view(page[None], spec, plane)
            for values in data[0].view(torch.float32):  # [H, S, D] of each layer
                by_token = values.transpose(0, 1)  # [S, H, D], a view of the page
                by_token.copy_(_encoded(by_token, encode))


def _encoded(x: Tensor, encode: Encode) -> Tensor:
    """What a reader would get of x [n, heads, D], in x's dtype."""
    exact = x.detach().cpu().numpy().astype(np.float64)
    return torch.from_numpy(encode(exact)).to(device=x.device, dtype=x.dtype)
