"""What calibration is worth: formats with and without it, side by side on the lab's text."""

from collections.abc import Sequence
from pathlib import Path

from workbench.errors import SettingError
from workbench.model.load import LoadedModel
from workbench.quality.plan import QualityPlan
from workbench.quality.results import QualityReport, Setting
from workbench.quality.run import Progress, measure
from workbench.quality.settings_file import format_changes
from workbench.settings.formats import CALIBRATED_FORMATS, KV_FORMATS

SCALED_FORMATS = ("fp8_e4m3", "fp8_e4m3_head")


def calibrated_settings(formats: Sequence[str], path: Path) -> list[Setting]:
    """Each format with the calibration of a file, and before it without, where it can do without.

    Raises SettingError for an unknown format.
    """
    settings = []
    for name in formats:
        if name not in KV_FORMATS:
            raise SettingError(f"{name!r} is no format: choose one of {', '.join(KV_FORMATS)}")
        changes = format_changes(name, name)
        if name not in CALIBRATED_FORMATS:
            settings.append(Setting(name=f"{name} scale 1", changes=changes))
        changes = {**changes, "cache.calibration": str(path)}
        settings.append(Setting(name=f"{name} calibrated", changes=changes))
    return settings


def measure_calibrated(
    model: LoadedModel,
    formats: Sequence[str],
    path: Path,
    plan: QualityPlan,
    progress: Progress = lambda share, text: None,
) -> list[QualityReport]:
    """Reports of `calibrated_settings`, in order."""
    return measure(model, calibrated_settings(formats, path), plan, progress)
