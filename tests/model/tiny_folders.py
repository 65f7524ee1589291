"""Tiny Hugging Face folders with fixed random weights; needs numpy and safetensors only.

Shared by the tests and by tests/peers/make_model_reference.py, so that both see the same model.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

BASE = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=64,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    max_position_embeddings=256,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
LLAMA, QWEN2, QWEN3 = "llama", "qwen2", "qwen3"
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_gqa_untied": (LLAMA, {}),
    "llama_mqa_tied": (LLAMA, {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama_mha_bias": (LLAMA, {"num_key_value_heads": 4, "attention_bias": True}),
    "llama_linear": (
        LLAMA,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama_llama3": (LLAMA, {"rope_parameters": LLAMA3_ROPE}),
    "qwen2_bias_tied": (QWEN2, {"tie_word_embeddings": True}),
    "qwen3_norm": (QWEN3, {"head_dim": 16}),
    "qwen3_norm_mqa_tied": (QWEN3, {"num_key_value_heads": 1, "tie_word_embeddings": True}),
}
TOKENS = [int(x) for x in np.random.RandomState(7).randint(0, 64, 48)]
_CLASS = {LLAMA: "LlamaForCausalLM", QWEN2: "Qwen2ForCausalLM", QWEN3: "Qwen3ForCausalLM"}


def write_case(folder: Path, case: str, *, shards: int = 1) -> Path:
    """Write config.json and safetensors of one case of CASES; returns the folder."""
    kind, changes = CASES[case]
    config = {**BASE, **changes, "architectures": [_CLASS[kind]], "model_type": kind}
    config["dtype"] = "float32"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = _tensors(kind, config)
    if shards == 1:
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        return folder
    names, weight_map = sorted(tensors), {}
    for index in range(shards):
        file_name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[index::shards]}
        save_file(part, str(folder / file_name), metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file_name))
    index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index_text)
    return folder


def tiny_tokenizer() -> str:
    """Content of a tokenizer.json with three tokens."""
    from tokenizers import Tokenizer, models

    return str(Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "<e>": 2}, merges=[])).to_str())


def _tensors(kind: str, config: dict[str, Any]) -> dict[str, np.ndarray]:
    random = np.random.RandomState(11)

    def draw(*shape: int, scale: float = 0.3, mean: float = 0.0) -> np.ndarray:
        return (mean + scale * random.standard_normal(shape)).astype(np.float32)

    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_rows = config["num_attention_heads"] * dim
    kv_rows = config["num_key_value_heads"] * dim
    tensors = {"model.embed_tokens.weight": draw(config["vocab_size"], hidden)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = draw(config["vocab_size"], hidden)
    tensors["model.norm.weight"] = draw(hidden, scale=0.1, mean=1.0)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            tensors[f"{at}self_attn.{name}_proj.weight"] = draw(rows, hidden)
            if kind == QWEN2 or config.get("attention_bias"):
                tensors[f"{at}self_attn.{name}_proj.bias"] = draw(rows)
        tensors[at + "self_attn.o_proj.weight"] = draw(hidden, q_rows)
        if config.get("attention_bias"):
            tensors[at + "self_attn.o_proj.bias"] = draw(hidden)
        if kind == QWEN3:
            for name in ("q", "k"):
                tensors[f"{at}self_attn.{name}_norm.weight"] = draw(dim, scale=0.2, mean=1.0)
        tensors[at + "mlp.gate_proj.weight"] = draw(inner, hidden)
        tensors[at + "mlp.up_proj.weight"] = draw(inner, hidden)
        tensors[at + "mlp.down_proj.weight"] = draw(hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = draw(hidden, scale=0.1, mean=1.0)
    return tensors
