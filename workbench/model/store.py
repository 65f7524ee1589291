"""Converted weights in the cache folder: written once, memory-mapped at every later start.

<cache>/converted/<identity>/about.json            architecture, name, tokenizer data
                             tokenizer.json
                             <format>-<build>.safetensors
<cache>/converted/sources.json                      path, size, time -> identity
"""

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from workbench.errors import ModelError
from workbench.model.arch import ModelArch
from workbench.model.convert import Converted
from workbench.model.fetch import cache_dir, writing
from workbench.model.tokenizer import Tokenizer, TokenizerInfo
from workbench.model.tokenizer_files import read_tokenizer

_ALIGNMENT = 64
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int8: "I8", torch.uint8: "U8"}
LAYOUT = 2  # raise it when the meaning of a converted file changes
ABOUT_LAYOUT = 3  # raise it when originals have to be looked at again before their weights are used


@dataclass(frozen=True)
class About:
    """What is known of a model without opening its original file."""

    arch: ModelArch
    name: str
    identity: str


@dataclass(frozen=True)
class StoredWeights:
    """Memory-mapped tensors of one weight format, each matrix's kind, and notes for the user."""

    tensors: dict[str, Tensor]
    kinds: dict[str, str]
    notes: tuple[str, ...]


class ConvertedStore:
    """The cache folder's converted models. All methods raise ModelError for a bad folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or cache_dir()) / "converted"

    def identity_of(self, source: Path) -> str | None:
        """The identity recorded for a file or folder that has not changed since."""
        index = _read_json(self.folder / "sources.json")
        match index.get(str(source.resolve())):
            case [stamp, str(identity)] if stamp == _stamp(source):
                return identity
        return None

    def remember(self, source: Path, identity: str) -> None:
        """Record the identity of a file or folder as it is now."""
        index = _read_json(self.folder / "sources.json")
        index[str(source.resolve())] = [_stamp(source), identity]
        self._write_text(self.folder / "sources.json", json.dumps(index))

    def load_about(self, identity: str) -> tuple[About, Tokenizer] | None:
        """Architecture and tokenizer of a converted model, None if not complete and whole here."""
        folder = self._model_folder(identity)
        values = _read_json(folder / "about.json")
        if values.get("layout") != ABOUT_LAYOUT or not (folder / "tokenizer.json").exists():
            return None
        try:
            raw = read_tokenizer(folder / "tokenizer.json")
            about = About(ModelArch.from_json(values["arch"]), values["name"], identity)
            return about, Tokenizer(raw, TokenizerInfo.from_json(values["tokenizer"]))
        except (ModelError, KeyError, TypeError, ValueError):
            return None  # damaged: the caller converts again

    def save_about(self, about: About, tokenizer: Tokenizer) -> None:
        """Write architecture and tokenizer of a model."""
        folder = self._model_folder(about.identity)
        self._write_text(folder / "tokenizer.json", tokenizer.raw.to_str())
        values = {
            "layout": ABOUT_LAYOUT,
            "arch": about.arch.to_json(),
            "name": about.name,
            "tokenizer": tokenizer.info.to_json(),
        }
        self._write_text(folder / "about.json", json.dumps(values))

    def load_weights(self, identity: str, weight_format: str) -> StoredWeights | None:
        """Memory-mapped weights, None if they were not converted yet or the file is broken."""
        path = self._weights_path(identity, weight_format)
        try:
            with safe_open(str(path), framework="pt") as file:
                meta = file.metadata()
                tensors = {key: _aligned(file.get_tensor(key)) for key in file.keys()}
            kinds, notes = json.loads(meta["kinds"]), json.loads(meta["notes"])
            return StoredWeights(tensors, kinds, tuple(notes))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            return None  # absent or half a file: the caller converts again

    def save_weights(self, identity: str, weight_format: str, converted: Converted) -> None:
        """Write converted weights next to their place, then rename, so that no half file shows."""
        path = self._weights_path(identity, weight_format)
        size = sum(tensor.nbytes for tensor in converted.tensors.values())
        meta = {"kinds": json.dumps(converted.kinds), "notes": json.dumps(converted.notes())}
        with writing(path.parent, size + (1 << 20)):
            with tempfile.TemporaryDirectory(prefix="write-", dir=path.parent) as folder:
                part = Path(folder) / "part.safetensors"
                write_aligned(part, converted.tensors, meta)
                os.replace(part, path)

    def _model_folder(self, identity: str) -> Path:
        return self.folder / identity[:24]

    def _weights_path(self, identity: str, weight_format: str) -> Path:
        # torch's int4 layout depends on the CPU's vector width and on the torch build.
        capability = torch.backends.cpu.get_cpu_capability().split()[0].lower()
        build = f"{LAYOUT}-{torch.__version__.split('+')[0]}-{capability}"
        return self._model_folder(identity) / f"{weight_format}-{build}.safetensors"

    def _write_text(self, path: Path, text: str) -> None:
        with writing(path.parent, len(text) + 4096):
            handle, part = tempfile.mkstemp(prefix="write-", dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(part, path)


def write_aligned(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file whose large tensors start at multiples of 64 bytes.

    torch's int8 kernel crashes on memory-mapped weights at other addresses, and the usual writer
    aligns to 8. Tensors whose size breaks the alignment come last.
    """
    names = sorted(tensors, key=lambda name: (tensors[name].nbytes % _ALIGNMENT != 0, name))
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            flat = tensors[name].contiguous().view(-1).view(torch.uint8)
            flat.numpy().tofile(file)


def _aligned(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def _stamp(source: Path) -> str:
    """Hash of names, sizes and modification times: changes when the source changes."""
    if source.is_dir():
        names = (
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "generation_config.json",
        )
        files = [source / name for name in names if (source / name).exists()]
        files += sorted(source.glob("*.safetensors*"))
    else:
        files = [source]
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # absent or damaged: the model is converted again
    return value if isinstance(value, dict) else {}
