"""Read a local Hugging Face folder: config.json and safetensors. No pickle, no remote code."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from workbench.errors import ModelError
from workbench.model.arch import ModelArch, RopeScaling
from workbench.model.source import Group4Bit, as_float, refuse_unread, tensor_names

SUPPORTED = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
_GLOBAL_NAMES = {
    "embed": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "final_norm": "model.norm.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
}
_HARMLESS = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")  # no weights


class HfSource:
    """A folder with config.json and *.safetensors as a `WeightSource`.

    Raises ModelError for a missing or broken file, an unknown architecture, pickled weights,
    missing tensors, and tensors that the decoder has no use for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self._files = _open_files(folder)
        self._where = {key: file for file in self._files for key in file.keys()}
        self.arch = arch_from_config(self.config, read_json(folder / "generation_config.json", {}))
        if self.arch.tie_embeddings is False and not self.has("head"):
            raise self._missing("lm_head.weight")
        read = {_hf_name(name) for name in (*tensor_names(self.arch), "head")}  # tied: a copy
        refuse_unread(str(folder), set(self._where) - read, _HARMLESS)
        self.name = str(self.config.get("_name_or_path") or folder.resolve().name)
        self.identity = folder_sha256(folder)

    def has(self, name: str) -> bool:
        """Whether the folder holds this tensor."""
        return _hf_name(name) in self._where

    def stored_as(self, name: str) -> str:
        """The stored dtype as safetensors names it: F32, F16 or BF16."""
        return str(self._slice(name).get_dtype())

    def tensor(self, name: str) -> Tensor:
        """The tensor in fp32."""
        kind = self.stored_as(name)
        if kind not in ("F32", "F16", "BF16", "F64"):
            raise ModelError(
                f"tensor {_hf_name(name)!r} is stored as {kind}: choose a model in F32, F16 or BF16"
            )
        return as_float(self._where[_hf_name(name)].get_tensor(_hf_name(name)))

    def packed(self, name: str) -> Group4Bit | None:
        """Hugging Face folders hold no 4-bit groups of our kind."""
        return None

    def _slice(self, name: str) -> Any:
        hf_name = _hf_name(name)
        if hf_name not in self._where:
            raise self._missing(hf_name)
        return self._where[hf_name].get_slice(hf_name)

    def _missing(self, hf_name: str) -> ModelError:
        return ModelError(
            f"{self.folder} has no tensor {hf_name!r}: the folder is incomplete, copy it again"
        )


def arch_from_config(config: dict[str, Any], generation: dict[str, Any]) -> ModelArch:
    """The architecture in a config.json, old (`rope_theta`) and new (`rope_parameters`) layout."""
    kind = _kind(config)
    if config.get("quantization_config"):
        raise ModelError("the folder holds quantized weights: choose its F32, F16 or BF16 version")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"activation {config['hidden_act']!r} is not supported: only silu is")
    if config.get("use_sliding_window"):
        raise ModelError("sliding-window attention is not supported: choose another model")
    if config.get("mlp_bias"):
        raise ModelError("mlp_bias = true is not supported: choose a model whose MLP has no biases")
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        eos = eos if isinstance(eos, list) else [eos]
        bos = config.get("bos_token_id")
        bias = bool(config.get("attention_bias", False))
        return ModelArch(
            name=kind,
            num_layers=int(config["num_hidden_layers"]),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            rope_scaling=_scaling(rope),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bias or kind == "qwen2",
            output_bias=bias and kind != "qwen2",
            qk_norm=kind == "qwen3",
            max_position=int(config.get("max_position_embeddings", 2048)),
            bos_id=None if bos is None else int(bos),
            eos_ids=tuple(int(i) for i in eos if i is not None),
        )
    except KeyError as error:
        raise ModelError(
            f"config.json lacks {error.args[0]!r}: the folder is incomplete, copy it again"
        ) from error


def read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from a file; `default` if the file is absent and a default is given."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if default is not None:
            return default
        raise ModelError(
            f"{path.parent} has no {path.name}: give a Hugging Face model folder or a .gguf file"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not readable JSON ({error}): copy the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object: copy the file again")
    return value


def folder_sha256(folder: Path) -> str:
    """SHA-256 over config.json and all safetensors files, names included."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _kind(config: dict[str, Any]) -> str:
    names = config.get("architectures") or [f"(model_type {config.get('model_type')})"]
    if names[0] not in SUPPORTED:
        raise ModelError(
            f"architecture {names[0]!r} is not supported: choose one of {', '.join(SUPPORTED)}"
        )
    return SUPPORTED[names[0]]


def _scaling(rope: dict[str, Any]) -> RopeScaling:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", "none"):
        return RopeScaling()
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position=int(rope["original_max_position_embeddings"]),
        )
    return RopeScaling(kind=kind, factor=float(rope.get("factor", 1.0)))


def _open_files(folder: Path) -> list[Any]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        if any(Path(name).name != name for name in names):
            raise ModelError(f"{index} points outside its folder: copy the folder again")
        paths = [folder / name for name in names]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        if pickled:
            raise ModelError(
                f"{folder} holds pickled weights ({pickled[0].name}), which can run code when "
                "opened: convert them to safetensors first"
            )
        raise ModelError(f"{folder} holds no *.safetensors file: copy the model folder again")
    return [_open_file(path) for path in paths]


def _open_file(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{path} is named in the index but missing: copy it again") from None
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} is not a readable safetensors file ({error}): copy it again"
        ) from error


def _hf_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, layer, leaf = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[leaf]}"
