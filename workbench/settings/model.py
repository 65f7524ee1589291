"""Settings of the model: which weights run, and how they are stored."""

from dataclasses import dataclass

from workbench.settings.declare import Section, setting

WEIGHT_FORMATS = ("auto", "as_stored", "int8", "bf16", "fp32")


@dataclass(frozen=True)
class ModelSettings(Section, section="model"):
    """Which weights run, and in which format."""

    path: str = setting("", change="restart")
    weight_format: str = setting("bf16", change="restart", choices=WEIGHT_FORMATS)
    max_model_len: int = setting(2048, change="rebuild", low=16, high=131072, unit="tokens")
    num_threads: int = setting(0, change="hot", low=0, high=256, unit="threads")
