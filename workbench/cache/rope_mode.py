"""Where keys are rotated, and which positions they have when that happens at read.

A rotation by position p is a rotation by p - q seen from a query at q, so that scores depend on
differences alone. Pages hold keys as projected (before RoPE) where a format needs that, or where
positions are those inside the cache (StreamingLLM, arXiv 2309.17453); then every page of the cache
does, so that one step never needs both kinds of queries.
"""

from typing import Literal

from kvkernels.api import Rope

from workbench.config import EngineConfig
from workbench.settings.formats import PRE_ROPE_FORMATS

RopeMode = Literal["stored", "original", "compact"]


def rope_mode(config: EngineConfig) -> RopeMode:
    """`stored`: keys are rotated before they are stored; else how slots are numbered at read.

    `original`: by the token's place in the text. `compact`: by its rank among the slots that its
    group stores, and queries likewise.
    """
    if config.retention.positions == "compact":
        return "compact"
    if config.cache.key_formats & set(PRE_ROPE_FORMATS):
        return "original"
    return "stored"


def kernel_rope(mode: RopeMode) -> Rope:
    """The kernels' word for it."""
    return "stored" if mode == "stored" else "at_read"
