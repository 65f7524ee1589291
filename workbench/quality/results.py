"""What one setting costs, as plain values for JSON, tables and plots; without torch."""

import re
from typing import Any

import msgspec

MAX_FLIPS = 200


def figure_name(name: str) -> str:
    """A setting's name as part of a figure's: lower case, digits, underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "setting"


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named set of changes to the default config: setting path to value."""

    name: str
    changes: dict[str, Any]


class ByteReport(msgspec.Struct, frozen=True, kw_only=True):
    """KV bytes at the end of a window, the last step's tokens included.

    `allocated`: pages it holds; `live`: their share that holds tokens; `metadata`: scales,
    minima and padding in the pages; `touched`: cache lines of the arena that were written since it
    was new, counted without asking anybody; pages that were given back meanwhile are in it, those
    that eviction and sealing free.
    `bits_per_element`: allocated bits per number of the tokens still stored. `ratio_to_bf16`: what
    the text would take in bf16 with nothing evicted, over `allocated`. `bounds`: what sparse reads
    keep beside these pages. `read_per_token`: bytes that a token of the last step read, bounds too.
    """

    allocated: int
    live: int
    metadata: int
    touched: int
    bits_per_element: float
    ratio_to_bf16: float
    tokens_per_mib: float
    tokens_stored: float  # mean over groups
    num_tokens: int
    bounds: int = 0
    read_per_token: float = 0.0

    @property
    def per_token(self) -> float:
        """Allocated bytes for each token of the text, kept or not."""
        return self.allocated / self.num_tokens


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """A position whose greedy next token differs, with both choices and what the text says."""

    window: int
    position: int
    full: str
    ours: str
    text: str


class NeedleScore(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probability in nats of the right digits, summed; `exact`: each was the best choice."""

    depth: float
    logprob_full: float
    logprob: float
    exact_full: bool
    exact: bool


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """A setting beside the full-precision cache on the same text and schedule.

    KL(full || setting) in nats a token; `*_low` and `*_high` bound 95 % of a bootstrap over
    windows (None for a single window). `kl_by_offset`: mean over windows for each position after
    the context (None where no position counts). `first_divergence`: scored tokens before the first
    flip of each window, -1 if there is none. `num_scored_tokens` is what every mean is over.
    """

    name: str
    changes: dict[str, Any]
    full_format: str
    num_windows: int
    num_scored_tokens: int
    context: int
    seed: int
    kl_mean: float
    kl_low: float | None
    kl_high: float | None
    kl_p99: float
    kl_by_offset: list[float | None]
    top1: float
    top5: float
    perplexity_full: float
    perplexity: float
    perplexity_diff: float
    perplexity_diff_low: float | None
    perplexity_diff_high: float | None
    first_divergence: list[int]
    num_flips: int
    flips: list[Flip]  # the first MAX_FLIPS
    bytes: ByteReport
    needle: list[NeedleScore]
    seconds: float  # of this setting's runs
    notes: list[str]
