"""Stand between the decoder and the cache: look at, or change, what one layer writes and reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from kvkernels.api import Rope
from torch import Tensor

from workbench.engine.engine import Engine
from workbench.model.decoder import Attend, Decoder


class AttendHook:
    """What happens around each layer's attention; override either side."""

    def begin(self, positions: Tensor) -> None:
        """A step begins with tokens at `positions` int64 [N]."""

    def before(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [N, num_kv_heads, D] to be stored instead."""
        return k, v

    def after(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        """`out` [N, num_heads * D] was read for q [N, num_heads, D]; k, v as stored."""


class _HookedDecoder:
    """A decoder whose every `attend` goes through a hook; all else is the inner one's."""

    def __init__(self, inner: Decoder, hook: AttendHook) -> None:
        self._inner = inner
        self._hook = hook

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        logit_rows: Tensor,
        *,
        rope: Rope = "stored",
    ) -> Tensor:
        hook = self._hook
        hook.begin(positions)

        def hooked(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = hook.before(layer, q, k, v)
            out = attend(layer, q, k, v)
            hook.after(layer, q, k, v, out)
            return out

        return self._inner.forward(token_ids, positions, hooked, logit_rows, rope=rope)


@contextmanager
def hooked(engine: Engine, hook: AttendHook) -> Iterator[Engine]:
    """Run the engine's current stack through a hook (a rebuild would lose it)."""
    runner = engine.stack.runner
    inner = runner.decoder
    runner.decoder = cast(Decoder, _HookedDecoder(inner, hook))
    try:
        with torch.inference_mode():
            yield engine
    finally:
        runner.decoder = inner
