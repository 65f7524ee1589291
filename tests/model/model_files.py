"""Writes a tiny GGUF file of a Hugging Face folder's weights, as llama.cpp's converter does."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from workbench.model import gguf_loader
from workbench.model.hf_loader import HfSource
from workbench.model.source import tensor_names


def write_gguf(path: Path, source: HfSource, more: dict[str, np.ndarray] | None = None) -> Path:
    """The weights in fp32, q and k rows interleaved, and `more` tensors by their GGUF names."""
    arch = source.arch
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(arch.num_layers)
    writer.add_head_count(arch.num_heads)
    writer.add_head_count_kv(arch.num_kv_heads)
    writer.add_key_length(arch.head_dim)
    writer.add_embedding_length(arch.hidden_size)
    writer.add_feed_forward_length(arch.intermediate_size)
    writer.add_context_length(arch.max_position)
    writer.add_rope_freq_base(arch.rope_theta)
    writer.add_layer_norm_rms_eps(arch.rms_eps)
    for name in tensor_names(arch):
        values = source.tensor(name).numpy()
        leaf = name.rsplit(".", 1)[-1]
        if leaf in ("q", "k"):
            values = _interleaved(values, arch.num_heads if leaf == "q" else arch.num_kv_heads)
        writer.add_tensor(gguf_name(name), values)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """The name of one of our tensors in a GGUF file."""
    if "." not in name:
        return f"{gguf_loader._GLOBAL_NAMES[name]}.weight"
    _, layer, leaf = name.split(".")
    return f"blk.{layer}.{gguf_loader._LAYER_NAMES[leaf]}"


def _interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    half = rows.shape[0] // num_heads // 2
    split = rows.reshape(num_heads, 2, half, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))
