"""Which calibration a config needs: none, the model's own file, or one that the user names."""

import dataclasses
from pathlib import Path

from workbench.cache.rope_mode import rope_mode
from workbench.config import EngineConfig
from workbench.errors import SettingError
from workbench.model.load import LoadedModel
from workbench.settings.formats import CALIBRATED_FORMATS, LOW_RANK_FORMATS
from workbench.structural.compression.calibration import Calibration, default_path, load, save
from workbench.structural.compression.measuring import Progress, help_tokens, measure

AUTO_TOKENS = 1024  # of the built-in text, where nobody measured before
LEAST_TOKENS = 64
OWN = ("needed", "all")  # values of cache.calibration that mean the model's own file


def find_calibration(
    config: EngineConfig, model: LoadedModel, known: Calibration | None = None
) -> Calibration | None:
    """The calibration that a config's pages depend on, measured now where none is stored yet.

    A file that is `known` is not read again: another may have its name by now, and pages that are
    resident were written with the first. Raises SettingError for a file that cannot serve.
    """
    wanted = config.cache.calibration
    formats = config.cache.used_formats & set(CALIBRATED_FORMATS)
    if config.cache.own_basis:
        formats -= set(LOW_RANK_FORMATS)  # each request's keys are measured instead
    if wanted == "needed" and not formats:
        return None
    own = wanted in OWN
    path = default_path(model.decoder) if own else Path(wanted).expanduser()
    if known is not None and known.path == path:
        found = known
    elif own and not path.exists():
        found = calibrate(model, AUTO_TOKENS)
    else:
        found = load(path, model.decoder)
    pre_rope = rope_mode(config) != "stored"
    return dataclasses.replace(found, scales=wanted != "needed", pre_rope=pre_rope)


def check_calibration(config: EngineConfig, model: LoadedModel) -> None:
    """Raise SettingError for a named file that cannot serve; nothing is measured."""
    if config.cache.calibration not in OWN:
        load(Path(config.cache.calibration).expanduser(), model.decoder)


def calibrate(
    model: LoadedModel,
    num_tokens: int,
    path: Path | None = None,
    progress: Progress = lambda share, text: None,
) -> Calibration:
    """Measure a model on the built-in text and write the file (by default the model's own)."""
    if num_tokens < LEAST_TOKENS:
        raise SettingError(f"{num_tokens} tokens are too few to calibrate: give {LEAST_TOKENS}")
    tokens = help_tokens(model.tokenizer, num_tokens)
    tensors = measure(model.decoder, tokens, progress)
    return save(tensors, model.decoder, len(tokens), path or default_path(model.decoder))
