"""Tiny random decoders for tests: any architecture option, no file, no tokenizer."""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from workbench.model.arch import ModelArch
from workbench.model.decoder import Decoder, DecoderWeights, Layer
from workbench.model.weights import DenseLinear, Embedding, FusedGatedLinear


def random_decoder(
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    vocab_size: int = 128,
    seed: int = 0,
    *,
    hidden_size: int | None = None,
    intermediate_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **arch_options: Any,
) -> Decoder:
    """A decoder with random weights, the same for the same arguments.

    `hidden_size` defaults to num_heads * head_dim, `intermediate_size` to twice that.
    `arch_options` are further fields of ModelArch (tie_embeddings, attention_bias, qk_norm,
    rope_scaling, ...).
    """
    hidden = hidden_size or num_heads * head_dim
    arch = ModelArch(
        name="random",
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        intermediate_size=intermediate_size or 2 * hidden,
        **arch_options,
    )
    draw = _Draw(seed, dtype, device)
    # Small rows keep a tied head from just repeating the last token.
    table = draw(vocab_size, hidden, scale=(0.5 if arch.tie_embeddings else 1.0) * hidden**-0.5)
    head = table if arch.tie_embeddings else draw(vocab_size, hidden, scale=3 * hidden**-0.5)
    weights = DecoderWeights(
        embed=Embedding(table, None, dtype),
        layers=tuple(_random_layer(arch, draw) for _ in range(num_layers)),
        final_norm=1 + draw(hidden, scale=0.1),
        head=DenseLinear(head),
        head_shares_embedding=arch.tie_embeddings,
    )
    identity = json.dumps([arch.to_json(), seed, str(dtype)], sort_keys=True)
    return Decoder(
        arch,
        weights,
        weight_format="fp32" if dtype == torch.float32 else "bf16",
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
        compute_dtype=dtype,
        device=device,
    )


class _Draw:
    """Gaussian tensors from one seeded stream."""

    def __init__(self, seed: int, dtype: torch.dtype, device: str) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype
        self._device = device

    def __call__(self, *shape: int, scale: float) -> Tensor:
        values = torch.randn(*shape, generator=self._generator) * scale
        return values.to(self._dtype).to(self._device)


def _random_layer(arch: ModelArch, draw: _Draw) -> Layer:
    hidden, inner = arch.hidden_size, arch.intermediate_size
    qkv_rows = arch.q_size + 2 * arch.kv_size
    heads = arch.num_heads + arch.num_kv_heads
    return Layer(
        attn_norm=1 + draw(hidden, scale=0.1),
        qkv=DenseLinear(
            draw(qkv_rows, hidden, scale=2 * hidden**-0.5),
            draw(qkv_rows, scale=0.1) if arch.attention_bias else None,
        ),
        o=DenseLinear(
            draw(hidden, arch.q_size, scale=arch.q_size**-0.5),
            draw(hidden, scale=0.1) if arch.output_bias else None,
        ),
        mlp_norm=1 + draw(hidden, scale=0.1),
        gate_up=FusedGatedLinear(DenseLinear(draw(2 * inner, hidden, scale=hidden**-0.5))),
        down=DenseLinear(draw(hidden, inner, scale=inner**-0.5)),
        qk_norm=1 + draw(heads, arch.head_dim, scale=0.1) if arch.qk_norm else None,
    )
