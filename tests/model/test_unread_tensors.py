"""A checkpoint with weights that the decoder has no use for is refused: it would answer wrongly."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from model_files import write_gguf
from safetensors.numpy import load_file, save_file
from tiny_folders import CASES, tiny_tokenizer, write_case

from workbench.errors import ModelError
from workbench.model.arch import ModelArch
from workbench.model.convert import convert
from workbench.model.gguf_loader import GgufSource
from workbench.model.hf_loader import HfSource
from workbench.model.load import load_model
from workbench.model.source import Group4Bit, tensor_names
from workbench.model.store import ConvertedStore


def put(folder: Path, **more: np.ndarray) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(str(path)) | more, str(path), metadata={"format": "pt"})


class Noting:
    """A source that remembers which tensors were taken from it."""

    def __init__(self, source: HfSource) -> None:
        self.source, self.taken = source, set[str]()
        self.arch: ModelArch = source.arch
        self.name, self.identity = source.name, source.identity

    def has(self, name: str) -> bool:
        return self.source.has(name)

    def tensor(self, name: str) -> torch.Tensor:
        self.taken.add(name)
        return self.source.tensor(name)

    def stored_as(self, name: str) -> str:
        return self.source.stored_as(name)

    def packed(self, name: str) -> Group4Bit | None:
        return self.source.packed(name)


@pytest.mark.parametrize("case", CASES)
def test_the_names_are_those_that_are_read(case: str, tmp_path: Path) -> None:
    source = Noting(HfSource(write_case(tmp_path / "model", case)))
    convert(source, "fp32")
    assert source.taken == set(tensor_names(source.arch))
    assert all(source.has(name) for name in source.taken)


def test_mlp_biases_are_refused(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "model", "llama_gqa_untied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mlp_bias": True}))
    with pytest.raises(ModelError, match="^mlp_bias = true is not supported: choose a model whose"):
        HfSource(folder)
    (folder / "config.json").write_text(json.dumps(config | {"mlp_bias": False}))
    HfSource(folder)


@pytest.mark.parametrize(
    "names",
    [
        ("model.layers.1.mlp.up_proj.bias",),
        ("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.v_proj.bias"),
        ("model.layers.0.self_attn.q_norm.weight",),
        ("model.layers.2.input_layernorm.weight",),  # a third layer; the configuration says two
        ("model.layers.0.self_attn.q_proj.weight_scale",),
    ],
)
def test_tensors_that_nobody_reads_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_case(tmp_path / "model", "llama_gqa_untied")
    put(folder, **dict.fromkeys(names, np.ones(32, np.float32)))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    with pytest.raises(ModelError) as error:
        HfSource(folder)
    text = str(error.value)
    assert f"holds the tensor {min(names)!r}{more}, which this decoder does not" in text
    assert "\n" not in text


def test_buffers_and_a_tied_head_are_harmless(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "model", "llama_mqa_tied")
    embed = load_file(str(folder / "model.safetensors"))["model.embed_tokens.weight"]
    frequencies = np.ones(4, np.float32)
    buffers = {
        "model.rotary_emb.inv_freq": frequencies,
        "model.layers.0.self_attn.rotary_emb.inv_freq": frequencies,
        "lm_head.weight": embed,
    }
    put(folder, **buffers)
    assert HfSource(folder).arch.tie_embeddings


def test_what_was_converted_before_is_looked_at_again(tmp_path: Path, empty_cache: Path) -> None:
    """Weights converted without the check must not be used for ever."""
    folder = write_case(tmp_path / "model", "llama_gqa_untied")
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    loaded = load_model(str(folder), "fp32", "cpu")
    about = ConvertedStore()._model_folder(loaded.identity) / "about.json"
    values = json.loads(about.read_text())
    about.write_text(json.dumps(values | {"layout": 2}))
    assert ConvertedStore().load_about(loaded.identity) is None


@pytest.mark.parametrize("name", ["blk.0.ffn_up.bias", "blk.1.ffn_gate_inp.weight"])
def test_gguf_tensors_that_nobody_reads_are_refused(name: str, tmp_path: Path) -> None:
    source = HfSource(write_case(tmp_path / "model", "llama_gqa_untied"))
    path = write_gguf(tmp_path / "tiny.gguf", source, {name: np.ones(48, np.float32)})
    with pytest.raises(ModelError, match=f"tiny.gguf holds the tensor '{name}', which this"):
        GgufSource(path)


def test_gguf_rotation_buffers_are_harmless(tmp_path: Path) -> None:
    source = HfSource(write_case(tmp_path / "model", "llama_gqa_untied"))
    more = {"blk.0.attn_rot_embd": np.ones(4, np.float32)}
    GgufSource(write_gguf(tmp_path / "tiny.gguf", source, more))
