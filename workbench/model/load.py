"""Load a model by path: the cached default, a GGUF file or a Hugging Face folder."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from workbench.errors import ModelError
from workbench.model.arch import ModelArch
from workbench.model.assemble import assemble, assemble_auto
from workbench.model.convert import convert, kept_types
from workbench.model.decoder import Decoder
from workbench.model.fetch import cached_path
from workbench.model.gguf_loader import GgufSource
from workbench.model.hf_loader import HfSource
from workbench.model.source import WeightSource
from workbench.model.store import About, ConvertedStore, StoredWeights
from workbench.model.tokenizer import Tokenizer
from workbench.model.tokenizer_files import tokenizer_from_folder, tokenizer_from_gguf
from workbench.settings.model import WEIGHT_FORMATS
from workbench.views import WeightNote

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadedModel:
    """A decoder with its tokenizer and where it came from.

    `notes` are for the user: stored types that had to change, the choice of `auto`.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    arch: ModelArch
    name: str
    path: Path
    identity: str
    notes: tuple[WeightNote, ...]


def load_model(
    path: str = "",
    weight_format: str = "bf16",
    device: str = "",
    progress: Progress | None = None,
) -> LoadedModel:
    """Load the model at `path` ("" = the fetched default) in a weight format.

    `device`: "" = the GPU where CUDA is available, else the CPU.
    The first load converts the weights into the cache folder, later ones memory-map them.
    `progress(done_steps, total_steps)` is called between conversion, mapping and prepacking.
    Raises ModelError for a missing, broken, foreign or unsupported model.
    """
    if weight_format not in WEIGHT_FORMATS:
        raise ModelError(
            f"weight format {weight_format!r} is unknown: choose one of {', '.join(WEIGHT_FORMATS)}"
        )
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    report = progress or (lambda done, total: None)
    report(0, 3)
    files = _ModelFiles(_resolve(path))
    about, tokenizer = files.about()
    report(1, 3)
    decoder, notes = _decoder(files, about, weight_format, device, report)
    report(3, 3)
    name = display_name(files.path)
    return LoadedModel(
        decoder, tokenizer, about.arch, name, files.path, about.identity, tuple(notes)
    )


def display_name(path: Path) -> str:
    """A model is known by its file's name; the stored quantization is shown apart from it."""
    name = path.name.removesuffix(".gguf")
    return re.sub(r"[.-](I?Q\d\w*|BF16|F16|F32)$", "", name, flags=re.IGNORECASE)


class _ModelFiles:
    """One model's original and converted files; the original is opened only when needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = ConvertedStore()
        self._source: WeightSource | None = None

    def about(self) -> tuple[About, Tokenizer]:
        """Architecture and tokenizer, from the cache or from the original."""
        identity = self._store.identity_of(self.path)
        known = self._store.load_about(identity) if identity else None
        if known is not None:
            return known
        source = self._open()
        about = About(source.arch, source.name, source.identity)
        if isinstance(source, GgufSource):
            tokenizer = tokenizer_from_gguf(source)
        else:
            tokenizer = tokenizer_from_folder(self.path, source.arch)
        self._store.save_about(about, tokenizer)
        self._store.remember(self.path, source.identity)
        return about, tokenizer

    def weights(self, identity: str, weight_format: str) -> StoredWeights:
        """Memory-mapped weights, converted first if that was not done yet."""
        stored = self._store.load_weights(identity, weight_format)
        if stored is None:
            self._store.save_weights(identity, weight_format, convert(self._open(), weight_format))
            stored = self._store.load_weights(identity, weight_format)
        if stored is None:
            raise ModelError(
                f"the converted weights in {self._store.folder} cannot be read back: delete that "
                "folder and start again"
            )
        return stored

    def _open(self) -> WeightSource:
        if self._source is None:
            self._source = HfSource(self.path) if self.path.is_dir() else GgufSource(self.path)
        return self._source


def _decoder(
    files: _ModelFiles, about: About, weight_format: str, device: str, report: Progress
) -> tuple[Decoder, list[WeightNote]]:
    notes: list[WeightNote] = []
    if device != "cpu" and weight_format in ("as_stored", "int8", "auto"):
        values = {"format": weight_format, "device": device}
        notes.append(WeightNote(kind="moved", values=values))
        weight_format = "bf16"
    first = files.weights(about.identity, "as_stored" if weight_format == "auto" else weight_format)
    for stored, kind in map(kept_types, first.notes):
        notes.append(WeightNote(kind="kept", values={"stored": stored, "format": kind}))
    if weight_format == "auto" and first.tensors["final_norm"].dtype == torch.bfloat16:
        many = files.weights(about.identity, "bf16")
        report(2, 3)
        decoder, threshold = assemble_auto(
            about.arch, first, many, identity=about.identity, device=device
        )
        notes.append(WeightNote(kind="auto", values={"rows": threshold}))
        return decoder, notes
    report(2, 3)
    decoder = assemble(
        about.arch, first, weight_format=weight_format, identity=about.identity, device=device
    )
    return decoder, notes


def _resolve(path: str) -> Path:
    if not path:
        default = cached_path()
        if default is None:
            raise ModelError("the default model is not here yet: run `workbench model fetch`")
        return default
    found = Path(path).expanduser()
    if not found.exists():
        raise ModelError(f"model path {path} does not exist: give a .gguf file or a model folder")
    if found.is_file() and found.suffix != ".gguf":
        raise ModelError(f"{path} is not a .gguf file: give a .gguf file or a model folder")
    return found
