"""Logits of known tokens, for whoever measures quality (vLLM calls them prompt_logprobs)."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from workbench.engine.runner import ForwardBatch
from workbench.request import Request

# tap(request, positions int64 [n], logits fp32 [n, vocab]); position p predicts token p + 1
Tap = Callable[[Request, np.ndarray, Tensor], None]


def hand_out(tap: Tap | None, batch: ForwardBatch, logits: Tensor) -> Tensor:
    """Give each request's rows to the tap; returns the rows that are sampled.

    Called when the step's tokens are stored and before any request ends.
    """
    if tap is not None:
        for part in batch.tapped:
            tap(part.request, part.positions, logits[part.rows])
    return logits if batch.sampled is None else logits[batch.sampled]
