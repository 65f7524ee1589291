"""Read a GGUF file: configuration, tensors (dequantized or as stored groups), tokenizer data."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.errors import ModelError
from workbench.model.arch import ModelArch, RopeScaling
from workbench.model.source import (
    Group4Bit,
    as_float,
    refuse_unread,
    tensor_names,
    unpermute_rope,
)

SUPPORTED = ("llama", "qwen2", "qwen3")
_GLOBAL_NAMES = {"embed": "token_embd", "head": "output", "final_norm": "output_norm"}
_LAYER_NAMES = {
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
}
_ROPE_FACTORS = "rope_freqs.weight"
_HARMLESS = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd(\.weight)?")  # no weights


class GgufSource:
    """One GGUF file as a `WeightSource`; `fields` holds its key-value metadata.

    Raises ModelError for a broken file, an architecture outside `SUPPORTED`, missing keys or
    tensors, and tensors that the decoder has no use for. llama.cpp permutes q and k rows of the
    Llama architecture: that is undone here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self.identity = file_sha256(path)
        self.fields = dict(self._reader.fields.items())
        self._tensors = {item.name: item for item in self._reader.tensors}
        self.arch = self._read_arch()
        self.name = str(self.value("general.name", path.stem))
        read = {self._file_name(name) for name in tensor_names(self.arch)}
        refuse_unread(path.name, set(self._tensors) - read, _HARMLESS)

    def value(self, key: str, default: Any = None) -> Any:
        """One metadata value as plain Python, or `default`."""
        return self.fields[key].contents() if key in self.fields else default

    def has(self, name: str) -> bool:
        """Whether the file holds this tensor."""
        return self._file_name(name) in self._tensors

    def stored_as(self, name: str) -> str:
        """GGML's name of the stored type."""
        return str(self._item(name).tensor_type.name)

    def tensor(self, name: str) -> Tensor:
        """The tensor in fp32, dequantized, q and k rows in half-rotation order."""
        from gguf import dequantize

        item = self._item(name)
        try:
            values = dequantize(item.data, item.tensor_type)
        except (NotImplementedError, KeyError) as error:
            raise ModelError(
                f"tensor {name!r} of {self.path.name} is stored as {item.tensor_type.name}, which "
                "cannot be dequantized here: choose a file with Q4, Q5, Q6 or Q8 quantization"
            ) from error
        shape = tuple(int(n) for n in reversed(item.shape))
        tensor = torch.from_numpy(np.array(values, dtype=np.float32, copy=True)).reshape(shape)
        return as_float(self._unpermute(name, tensor))

    def packed(self, name: str) -> Group4Bit | None:
        """Codes, scales and minima of a Q4_0 or Q4_1 matrix (GGML's block layouts)."""
        item = self._item(name)
        kind = item.tensor_type.name
        if kind not in ("Q4_0", "Q4_1"):
            return None
        out_features = int(item.shape[1])
        block_bytes = 18 if kind == "Q4_0" else 20
        blocks = np.ascontiguousarray(item.data).reshape(out_features, -1, block_bytes)
        header = np.ascontiguousarray(blocks[:, :, : block_bytes - 16]).view(np.float16)
        scale = header[:, :, 0].astype(np.float32)  # [out, in / 32]
        minimum = header[:, :, 1].astype(np.float32) if kind == "Q4_1" else -8.0 * scale
        nibbles = blocks[:, :, block_bytes - 16 :]  # [out, in / 32, 16]
        # Low nibbles are elements 0-15 of the group, high nibbles 16-31.
        codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).reshape(out_features, -1)
        parts = [torch.from_numpy(np.ascontiguousarray(a)) for a in (codes, scale, minimum)]
        parts = [self._unpermute(name, part) for part in parts]
        return Group4Bit(codes=parts[0], scale=parts[1], minimum=parts[2])

    def _unpermute(self, name: str, tensor: Tensor) -> Tensor:
        leaf = name.rsplit(".", 1)[-1]
        if self.value("general.architecture") != "llama" or leaf not in (
            "q",
            "k",
            "q_bias",
            "k_bias",
        ):
            return tensor
        heads = self.arch.num_heads if leaf.startswith("q") else self.arch.num_kv_heads
        return unpermute_rope(tensor, heads)

    def _file_name(self, name: str) -> str:
        if name in _GLOBAL_NAMES:
            return f"{_GLOBAL_NAMES[name]}.weight"
        _, layer, leaf = name.split(".")
        return f"blk.{layer}.{_LAYER_NAMES[leaf]}"

    def _item(self, name: str) -> Any:
        file_name = self._file_name(name)
        if file_name not in self._tensors:
            raise ModelError(
                f"{self.path.name} has no tensor {file_name!r}: the file is incomplete, "
                "download it again"
            )
        return self._tensors[file_name]

    def _need(self, key: str) -> Any:
        value = self.value(key)
        if value is None:
            raise ModelError(f"{self.path.name} lacks the key {key!r}: choose a complete GGUF file")
        return value

    def _read_arch(self) -> ModelArch:
        kind = str(self._need("general.architecture"))
        if kind not in SUPPORTED:
            raise ModelError(
                f"{self.path.name} is a {kind!r} model: choose one of {', '.join(SUPPORTED)}"
            )
        heads = int(self._need(f"{kind}.attention.head_count"))
        hidden = int(self._need(f"{kind}.embedding_length"))
        eos = self.value("tokenizer.ggml.eos_token_id")
        eot = self.value("tokenizer.ggml.eot_token_id")
        bos = self.value("tokenizer.ggml.bos_token_id")
        embed = self._item("embed")
        return ModelArch(
            name=kind,
            num_layers=int(self._need(f"{kind}.block_count")),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=int(self.value(f"{kind}.attention.head_count_kv", heads)),
            head_dim=int(self.value(f"{kind}.attention.key_length", hidden // heads)),
            intermediate_size=int(self._need(f"{kind}.feed_forward_length")),
            vocab_size=int(embed.shape[1]),
            rope_theta=float(self.value(f"{kind}.rope.freq_base", 10000.0)),
            rope_scaling=self._read_scaling(kind),
            rms_eps=float(self._need(f"{kind}.attention.layer_norm_rms_epsilon")),
            tie_embeddings="output.weight" not in self._tensors,
            attention_bias="blk.0.attn_q.bias" in self._tensors,
            output_bias="blk.0.attn_output.bias" in self._tensors,
            qk_norm="blk.0.attn_q_norm.weight" in self._tensors,
            max_position=int(self._need(f"{kind}.context_length")),
            bos_id=None if bos is None else int(bos),
            eos_ids=tuple(dict.fromkeys(int(i) for i in (eos, eot) if i is not None)),
        )

    def _read_scaling(self, kind: str) -> RopeScaling:
        scaling = self.value(f"{kind}.rope.scaling.type", "none")
        factor = float(self.value(f"{kind}.rope.scaling.factor", 1))
        if _ROPE_FACTORS in self._tensors and scaling in ("none", "linear"):
            table = np.array(self._tensors[_ROPE_FACTORS].data, np.float64).reshape(-1)
            return RopeScaling(
                "table", factor if scaling == "linear" else 1.0, factors=tuple(table.tolist())
            )
        return RopeScaling() if scaling == "none" else RopeScaling(kind=scaling, factor=factor)


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(str(path))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist: check the path") from None
    except (OSError, ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path} is not a readable GGUF file ({error}): download it again"
        ) from error


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
