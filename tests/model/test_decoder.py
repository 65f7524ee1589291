"""The decoder's contract with its caller: rows, positions, RoPE, chunks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.model.arch import RopeScaling
from workbench.model.decoder import Decoder, apply_rope, rms_norm
from workbench.model.naive import causal_attend, naive_greedy, naive_logits
from workbench.model.random_model import random_decoder

OPTIONS = st.fixed_dictionaries(
    {
        "num_kv_heads": st.sampled_from([1, 2, 4]),
        "tie_embeddings": st.booleans(),
        "attention_bias": st.booleans(),
        "output_bias": st.booleans(),
        "qk_norm": st.booleans(),
        "hidden_size": st.sampled_from([None, 48]),
        "seed": st.integers(0, 3),
    }
)


class ChunkCache:
    """Keys and values of all earlier chunks, kept as plain tensors."""

    def __init__(self, num_layers: int) -> None:
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(num_layers)]

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self._kept[layer].append(torch.stack([k, v]))
        keys, values = torch.cat(self._kept[layer], dim=1)
        padding = torch.zeros(len(keys) - len(q), *q.shape[1:])
        return causal_attend(layer, torch.cat([padding, q]), keys, values)[len(padding) :]


@settings(max_examples=20, deadline=None)
@given(options=OPTIONS, cut=st.integers(1, 11))
def test_two_chunks_equal_one(options: dict, cut: int) -> None:
    decoder = random_decoder(**options)
    tokens = torch.arange(12) * 7 % 128
    whole = naive_logits(decoder, tokens.tolist())
    cache = ChunkCache(decoder.arch.num_layers)
    parts = []
    for span in (slice(0, cut), slice(cut, 12)):
        positions = torch.arange(12)[span]
        rows = torch.arange(len(positions))
        parts.append(decoder.forward(tokens[span], positions, cache.attend, rows))
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)


def test_logit_rows_choose_and_may_be_empty() -> None:
    decoder = random_decoder()
    tokens, positions = torch.arange(6), torch.arange(6)
    everything = decoder.forward(tokens, positions, causal_attend, torch.arange(6))
    chosen = decoder.forward(tokens, positions, causal_attend, torch.tensor([5, 2, 2]))
    torch.testing.assert_close(chosen, everything[[5, 2, 2]], atol=1e-5, rtol=1e-5)
    seen: list[int] = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append(layer)
        return causal_attend(layer, q, k, v)

    none = decoder.forward(tokens, positions, attend, torch.empty(0, dtype=torch.int64))
    assert none.shape == (0, 128) and seen == [0, 1]


def test_attention_depends_on_distance_only() -> None:
    """RoPE: shifting all positions leaves the logits, up to rounding."""
    decoder = random_decoder()
    tokens, rows = torch.arange(8), torch.arange(8)
    near = decoder.forward(tokens, torch.arange(8), causal_attend, rows)
    far = decoder.forward(tokens, torch.arange(8) + 900, causal_attend, rows)
    torch.testing.assert_close(near, far, atol=2e-3, rtol=1e-3)


def test_positions_beyond_the_tables_extend_them() -> None:
    decoder = random_decoder(max_position=64)
    out = decoder.forward(torch.tensor([1]), torch.tensor([5000]), causal_attend, torch.tensor([0]))
    assert torch.isfinite(out).all()


def test_rope_at_read_hands_over_unrotated_keys() -> None:
    decoder = random_decoder()
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str):
        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if layer == 0:
                kept[name] = k.clone()
            return causal_attend(layer, q, k, v)

        return attend

    tokens, positions, rows = torch.arange(5), torch.arange(5) + 3, torch.arange(5)
    decoder.forward(tokens, positions, keep("rotated"), rows)
    decoder.forward(tokens, positions, keep("plain"), rows, rope="at_read")
    cos, sin = (table[positions][:, None] for table in decoder.rope_tables(16))
    rotated = apply_rope(kept["plain"], torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))
    torch.testing.assert_close(rotated, kept["rotated"])


@pytest.mark.parametrize("kind", ["none", "linear", "llama3"])
def test_scaling_slows_long_wavelengths_only_where_it_says(kind: str) -> None:
    scaling = RopeScaling(kind=kind, factor=4.0, original_max_position=64)
    arch = random_decoder(rope_scaling=scaling).arch
    plain = random_decoder().arch.inverse_frequencies()
    ratios = [a / b for a, b in zip(plain, arch.inverse_frequencies(), strict=True)]
    expected = {"none": (1, 1), "linear": (4, 4), "llama3": (1, 4)}[kind]
    assert (ratios[0], ratios[-1]) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_leaves_its_input(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 32).to(dtype), torch.randn(32).to(dtype)
    before = x.clone()
    got = rms_norm(x, weight, torch.tensor(1e-5))
    want = torch.nn.functional.rms_norm(x, (32,), weight, 1e-5)
    torch.testing.assert_close(got, want, atol=2e-2 if dtype == torch.bfloat16 else 1e-6, rtol=1e-2)
    assert torch.equal(x, before)


def test_same_arguments_give_the_same_model() -> None:
    def run(decoder: Decoder) -> tuple[list[int], list[float]]:
        return naive_greedy(decoder, [1, 2, 3], 8)

    assert run(random_decoder(seed=3)) == run(random_decoder(seed=3))
    assert random_decoder(seed=3).fingerprint == random_decoder(seed=3).fingerprint
    assert random_decoder(seed=3).fingerprint != random_decoder(seed=4).fingerprint


def test_weight_bytes_are_the_tensors_bytes() -> None:
    decoder = random_decoder(tie_embeddings=True)
    assert decoder.weight_bytes == 4 * decoder.arch.num_parameters
