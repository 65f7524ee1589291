"""What a quality run measures on: windows of text, how they are cut into steps, and the seed."""

import msgspec

from workbench.errors import SettingError
from workbench.settings.model import WEIGHT_FORMATS

MAX_HELD_BYTES = 512 * 2**20  # logits of the full-precision run that are held at a time
_RANGES = {
    "context": (1, 131072),
    "scored": (1, 16384),
    "num_windows": (1, 4096),
    "context_chunk": (1, 16384),
    "scored_chunk": (1, 16384),
    "num_bootstrap": (1, 100_000),
}


class QualityPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text, one schedule, one seed: the same for the full cache and for every setting.

    A window is `context` tokens that are only read and `scored` tokens that are predicted, forced
    to be what the text says. Steps hold `context_chunk` tokens, then `scored_chunk`: every query
    reads what its own step has just stored, so smaller chunks come closer to decoding. `texts` are
    files; none means the standard library's help topics. Raises SettingError.
    """

    context: int = 1024
    scored: int = 512
    num_windows: int = 8
    context_chunk: int = 128
    scored_chunk: int = 32
    seed: int = 0
    texts: tuple[str, ...] = ()
    weight_format: str = "bf16"
    exact_prefill: bool = False  # read the context in full precision, then recode its pages
    needle: bool = False
    query_aware: bool = False  # the needle's question is known before the context is read
    num_bootstrap: int = 1000

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingError(f"{name} = {value} is out of range: {low} to {high}")
        if self.weight_format not in WEIGHT_FORMATS:
            raise SettingError(
                f"weight_format = {self.weight_format!r} is not allowed: choose one of "
                f"{', '.join(WEIGHT_FORMATS)}"
            )

    @property
    def window_tokens(self) -> int:
        """Tokens of one window."""
        return self.context + self.scored

    def held_bytes(self, vocab_size: int) -> int:
        """Bytes of the full cache's log-probabilities of one window; SettingError above the limit.

        They are fp32 [scored, vocab] and live until the window's last setting is done.
        """
        size = self.scored * vocab_size * 4
        if size > MAX_HELD_BYTES:
            raise SettingError(
                f"scored = {self.scored} would hold {size / 2**20:.0f} MiB of log-probabilities "
                f"(at most {MAX_HELD_BYTES / 2**20:.0f}): choose at most "
                f"{MAX_HELD_BYTES // (4 * vocab_size)} and more windows"
            )
        return size


# Small enough for an answer within seconds beside a running engine.
LIVE_PLAN = QualityPlan(context=512, scored=256, num_windows=2)
