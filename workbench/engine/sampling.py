"""The next token, keyed by (seed, sample index, position): a stream never depends on its batch."""

import numpy as np
import torch
from torch import Tensor

from workbench.request import Request, SamplingParams

GREEDY_BELOW = 1e-5  # a temperature that small would only overflow


def sample(logits: Tensor, requests: list[Request]) -> list[int]:
    """One token for each row of logits fp32 [n, vocab]; row i belongs to `requests[i]`."""
    if not requests:
        return []
    greedy: list[int] = logits.argmax(dim=-1).tolist()
    for row, request in enumerate(requests):
        if request.sampling.temperature > GREEDY_BELOW:
            greedy[row] = draw(logits[row], request.sampling, request.num_tokens)
    return greedy


def draw(logits: Tensor, params: SamplingParams, position: int) -> int:
    """Sample one token: temperature, then top-k, then top-p (as vLLM orders them)."""
    scaled = logits.float() / params.temperature
    values, tokens = scaled.sort(descending=True, stable=True)
    if params.top_k:
        values, tokens = values[: params.top_k], tokens[: params.top_k]
    probs = torch.softmax(values, dim=-1).cpu().numpy().astype(np.float64)
    cumulative = probs.cumsum()
    # keep the smallest set whose mass reaches top_p, and always the first token
    kept = int(np.searchsorted(cumulative, params.top_p * cumulative[-1])) + 1
    cumulative = cumulative[: min(kept, len(cumulative))]
    point = uniform(params, position) * cumulative[-1]
    chosen = int(np.searchsorted(cumulative, point, side="right"))
    return int(tokens[min(chosen, len(cumulative) - 1)])


def uniform(params: SamplingParams, position: int) -> float:
    """A number in [0, 1) that depends on nothing but seed, sample index and position."""
    key = np.array([params.seed & (2**64 - 1), params.sample_index], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=position)).random())
