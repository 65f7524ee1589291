"""What admission knows of pages on their way up: the decision, the job, its end, the totals."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from workbench.cache.keys import TierKey
from workbench.request import Request


class Fetch(Enum):
    """What admission should do with a request."""

    ADMIT = "admit"
    LOADING = "loading"  # a load was started
    WAIT = "wait"  # ask again next step


@dataclass
class Loaded:
    """Pages of one request that lie verified in host memory, from block `first` on."""

    job_id: int
    first: int
    pages: dict[TierKey, np.ndarray]


@dataclass
class PendingLoad:
    """A load on its way; past its deadline it counts as failed, and its pages are recomputed."""

    job_id: int
    first: int
    request: Request
    deadline_s: float


@dataclass
class TierGain:
    """What the fetches from one tier brought: tokens, the seconds they took from start to arrival,
    and what computing those tokens again was predicted to take."""

    num_tokens: int = 0
    fetch_s: float = 0.0
    recompute_s: float = 0.0


@dataclass
class FetchCounters:
    """Totals since the start; each can move."""

    num_gated: int = 0  # fetches refused as slower than recomputing
    num_loaded_pages: int = 0
    num_failed_pages: int = 0
    num_late_loads: int = 0  # given up at their deadline
    num_demoted_pages: int = 0
    num_swapped_pages: int = 0
    last_load_s: float = 0.0
    last_recompute_s: float = 0.0
    gains: dict[str, TierGain] = field(default_factory=dict)  # by tier

    def gained(
        self, tiers: dict[str, int], block_tokens: int, fetch_s: float, each_s: float
    ) -> None:
        """Count a finished fetch: pages by tier, its seconds, and a page's to compute again."""
        pages = sum(tiers.values())
        for tier, count in tiers.items():
            gain = self.gains.setdefault(tier, TierGain())
            gain.num_tokens += count * block_tokens
            gain.fetch_s += fetch_s * count / pages
            gain.recompute_s += each_s * count
