"""A GGUF in every quantization that the `gguf` package dequantizes is loaded and runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, dequantize

from workbench.errors import ModelError
from workbench.model.gguf_loader import GgufSource
from workbench.model.load import load_model
from workbench.model.naive import naive_logits

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
         "Q5_K", "Q6_K", "TQ1_0", "IQ4_NL", "IQ4_XS")  # fmt: skip
HIDDEN, VOCAB = 256, 64  # super blocks of the K types have 256 numbers
SHAPES = {
    "attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256),
    "ffn_gate": (256, 256), "ffn_up": (256, 256), "ffn_down": (256, 256),
}  # fmt: skip
KEYS = {
    "block_count": 1, "context_length": 64, "embedding_length": HIDDEN,
    "feed_forward_length": 256, "attention.head_count": 4, "attention.head_count_kv": 2,
}  # fmt: skip


def stored(rows: int, columns: int, kind: GGMLQuantizationType, seed: int) -> np.ndarray:
    """Blocks of a type as uint8 [rows, bytes]: small scales, any codes.

    Bytes below 0x40 are no NaN and at most 2 wherever a block keeps its fp16 scale.
    """
    size, num_bytes = GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(seed)
    return draw.integers(0, 0x40, (rows, columns // size * num_bytes), dtype=np.uint8)


def write(path: Path, kind: GGMLQuantizationType) -> dict[str, np.ndarray]:
    """A llama of one layer whose matrices are of `kind`; returns their blocks."""
    writer = GGUFWriter(str(path), "llama")
    for key, value in KEYS.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", *(f"t{index}" for index in range(3, VOCAB))])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    blocks = {}
    for at, (name, shape) in enumerate(SHAPES.items()):
        blocks[name] = stored(*shape, kind, at)
        writer.add_tensor(f"blk.0.{name}.weight", blocks[name], raw_dtype=kind)
    table = np.random.default_rng(9).standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    writer.add_tensor("token_embd.weight", table)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return blocks


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_loaded(name: str, tmp_path: Path, empty_cache: Path) -> None:
    kind = GGMLQuantizationType[name]
    path = tmp_path / f"tiny.{name}.gguf"
    blocks = write(path, kind)
    source = GgufSource(path)
    for leaf, there in (("v", "attn_v"), ("down", "ffn_down")):  # q and k change their rows' order
        assert source.stored_as(f"layers.0.{leaf}") == name
        right = np.asarray(dequantize(blocks[there], kind), np.float32).reshape(SHAPES[there])
        np.testing.assert_array_equal(source.tensor(f"layers.0.{leaf}").numpy(), right)
    tokens = [3, 1, 60, 7, 7, 21]
    exact = naive_logits(load_model(str(path), "fp32").decoder, tokens)
    ours = naive_logits(load_model(str(path), "as_stored").decoder, tokens)
    assert torch.isfinite(exact).all() and exact.shape == (6, VOCAB)
    assert (ours - exact).norm() <= 0.15 * exact.norm()  # random matrices in bf16


def test_a_type_that_nothing_dequantizes_is_named(tmp_path: Path, empty_cache: Path) -> None:
    path = tmp_path / "q8_1.gguf"
    write(path, GGMLQuantizationType.Q8_1)
    with pytest.raises(
        ModelError,
        match="tensor 'layers.0.*' of q8_1.gguf is stored as Q8_1, which cannot be dequantized "
        "here: choose a file with Q4, Q5, Q6 or Q8",
    ):
        load_model(str(path), "fp32")
