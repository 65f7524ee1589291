"""The oracle: greedy decoding that recomputes everything, contiguous and without a cache."""

import torch
from torch import Tensor
from torch.nn import functional

from workbench.model.decoder import Decoder


def naive_logits(decoder: Decoder, token_ids: list[int]) -> Tensor:
    """Logits fp32 [T, vocab_size] at each of T tokens, by full causal attention."""
    count = len(token_ids)
    rows = torch.arange(count, device=decoder.device)
    return _forward(decoder, token_ids, rows)


def naive_greedy(
    decoder: Decoder, token_ids: list[int], num_new: int
) -> tuple[list[int], list[float]]:
    """`num_new` greedy tokens after the prompt, and each step's margin.

    A margin is the gap between the two best logits: two correct programs may differ where it is
    below their rounding (invariant I9 allows 1e-3).
    """
    tokens, new, margins = list(token_ids), [], []
    for _ in range(num_new):
        row = torch.tensor([len(tokens) - 1], device=decoder.device)
        best = _forward(decoder, tokens, row)[0].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        new.append(int(best.indices[0]))
        tokens.append(new[-1])
    return new, margins


def causal_attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over exactly the tokens given: q [N, Hq, D], k and v [N, Hkv, D]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, heads, N, D]
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1).flatten(1)


def _forward(decoder: Decoder, token_ids: list[int], rows: Tensor) -> Tensor:
    tokens = torch.tensor(token_ids, dtype=torch.int64, device=decoder.device)
    positions = torch.arange(len(token_ids), device=decoder.device)
    return decoder.forward(tokens, positions, causal_attend, rows)
