"""What `workbench model info` reads out of a model file."""

from pathlib import Path
from typing import Any

from workbench.errors import ModelError


def describe(path: Path | None, weight_format: str = "") -> dict[str, Any]:
    """Facts of a GGUF file, a Hugging Face folder, or (None) the cached default model.

    Reads headers and the identity's checksum; weights only where a format is named, to say what
    becomes of them in it. Raises ModelError when the model is not there or cannot be loaded.
    """
    from workbench.model import fetch

    found = path or fetch.cached_path()
    if found is None:
        raise ModelError(
            f"the default model is not in {fetch.cache_dir()}: run `workbench model fetch`"
        )
    if not found.exists():
        raise ModelError(f"{found} does not exist: name a GGUF file or a Hugging Face folder")
    from workbench.model.gguf_loader import GgufSource
    from workbench.model.hf_loader import HfSource

    source = HfSource(found) if found.is_dir() else GgufSource(found)
    arch = source.arch
    files = [item for item in found.rglob("*") if item.is_file()] if found.is_dir() else [found]
    return {
        "path": str(found),
        "name": source.name,
        "file_bytes": sum(item.stat().st_size for item in files),
        "parameters": arch.num_parameters,
        "stored_as": source.stored_as("layers.0.q"),
        **arch.to_json(),
        "kv_bytes_per_token_bf16": 4 * arch.num_layers * arch.kv_size,
        "identity": source.identity,
    } | (_loaded(found, weight_format) if weight_format else {})


def _loaded(path: Path, weight_format: str) -> dict[str, Any]:
    """What the weights are once they are loaded in a format."""
    from workbench.model.load import load_model

    model = load_model(str(path), weight_format)
    return {
        "weights": model.decoder.weight_format,
        "weight_bytes": model.decoder.weight_bytes,
        "schedule_dependent": model.decoder.schedule_dependent,
        "weight_notes": [note.plain() for note in model.notes],
    }
