"""Broken, foreign and missing model files: one sentence each, naming the thing and the remedy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.numpy import load_file, save_file
from tiny_folders import tiny_tokenizer, write_case

from workbench.errors import ModelError
from workbench.model.gguf_loader import GgufSource
from workbench.model.hf_loader import HfSource
from workbench.model.load import load_model
from workbench.model.source import unpermute_rope


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key)
        else:
            config[key] = value
    path.write_text(json.dumps(config))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_case(tmp_path / "model", "llama_gqa_untied")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported: choose one"),
        ({"architectures": None}, "model_type llama.* is not supported"),
        ({"hidden_size": None}, "config.json lacks 'hidden_size'"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"use_sliding_window": True}, "sliding-window attention is not supported"),
        ({"quantization_config": {"bits": 4}}, "holds quantized weights"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "RoPE scaling 'yarn' is not"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads"),
        ({"num_hidden_layers": 0}, "num_layers = 0 is not allowed"),
        ({"head_dim": 7}, "head_dim = 7 is not allowed"),
    ],
)
def test_unsupported_config(folder: Path, changes: dict[str, Any], sentence: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=sentence):
        HfSource(folder)


def test_missing_tensor_and_wrong_shape(folder: Path, empty_cache: Path) -> None:
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, str(path))
    with pytest.raises(ModelError, match="no tensor 'model.layers.1.mlp.up_proj.weight'"):
        load_model(str(folder), "fp32")
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((3, 32), np.float32)
    save_file(tensors, str(path))
    with pytest.raises(ModelError, match=r"layers.1.gate_up' has shape \(51, 32\).*\(96, 32\)"):
        load_model(str(folder), "fp32")


def test_untied_model_without_head(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    del tensors["lm_head.weight"]
    save_file(tensors, str(path))
    with pytest.raises(ModelError, match="no tensor 'lm_head.weight'"):
        HfSource(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled weights .*convert them to safetensors"):
        HfSource(folder)


def test_folder_without_weights_or_config(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no .*safetensors file"):
        HfSource(folder)
    with pytest.raises(ModelError, match="has no config.json: give a Hugging Face model folder"):
        HfSource(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="config.json is not readable JSON"):
        HfSource(folder)


def test_truncated_safetensors(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="not a readable safetensors file .*copy it again"):
        HfSource(folder)


def test_missing_shard_and_index_that_leaves_the_folder(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "sharded", "llama_gqa_untied", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="named in the index but missing"):
        HfSource(folder)
    index = {"weight_map": {"a": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="points outside its folder"):
        HfSource(folder)


def test_paths_that_lead_nowhere(tmp_path: Path, empty_cache: Path) -> None:
    with pytest.raises(ModelError, match="default model is not here yet: run `workbench model"):
        load_model()
    with pytest.raises(ModelError, match="does not exist: give a .gguf file or a model folder"):
        load_model(str(tmp_path / "nothing.gguf"))
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="is not a .gguf file"):
        load_model(str(tmp_path / "model.bin"))
    with pytest.raises(ModelError, match="weight format 'fp7' is unknown: choose one of auto"):
        load_model(str(tmp_path), "fp7")


def test_folder_without_tokenizer(folder: Path, empty_cache: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer.json"):
        load_model(str(folder), "fp32")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="not a readable tokenizer"):
        load_model(str(folder), "fp32")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, really not", None])
def test_broken_gguf(tmp_path: Path, gguf_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broken.gguf"
    with gguf_path.open("rb") as file:
        path.write_bytes(file.read(5_000_000) if content is None else content)
    with pytest.raises(ModelError, match="not a readable GGUF file .*download it again"):
        GgufSource(path)


def test_foreign_gguf(tmp_path: Path) -> None:
    path = tmp_path / "foreign.gguf"
    writer = GGUFWriter(str(path), "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="is a 'mamba' model: choose one of llama, qwen2, qwen3"):
        GgufSource(path)


def test_packed_groups_equal_dequantized(gguf_source: GgufSource) -> None:
    for name in ("layers.0.q", "layers.3.k", "layers.7.down"):
        groups = gguf_source.packed(name)
        assert groups is not None
        wide = [part.repeat_interleave(32, dim=1) for part in (groups.scale, groups.minimum)]
        torch.testing.assert_close(wide[0] * groups.codes + wide[1], gguf_source.tensor(name))
    assert gguf_source.packed("embed") is None


def test_unpermute_inverts_the_interleaving_of_the_converter() -> None:
    heads, head_dim = 3, 8
    rows = torch.arange(heads * head_dim).float()[:, None]
    stored = rows.reshape(heads, 2, head_dim // 2, 1).transpose(1, 2).reshape(rows.shape)
    assert torch.equal(unpermute_rope(stored, heads), rows)
