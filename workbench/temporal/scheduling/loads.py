"""What admission knows of pages on their way up: the decision, the job, its end, the totals."""

from collections import Counter
from collections.abc import Sequence
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
    """Pages of one request that lie in host memory, from block `first` on.

    They are verified, but for those with `checksums`, which are when they are copied.
    """

    job_id: int
    first: int
    pages: dict[TierKey, np.ndarray]
    tiers: dict[TierKey, str]
    checksums: dict[TierKey, tuple[int, ...]] = field(default_factory=dict)  # yet to be compared

    def drop_from(self, key: TierKey) -> int:
        """Forget a page and those behind it; returns how many."""
        keys = list(self.pages)
        for each in keys[keys.index(key) :]:
            del self.pages[each]
        return len(keys) - len(self.pages)


@dataclass
class PendingLoad:
    """A load on its way; past its deadline it counts as failed, and its pages are recomputed."""

    job_id: int
    first: int
    request: Request
    deadline_s: float
    start_s: float


@dataclass(frozen=True)
class Found:
    """What continues a hit: pages that are loaded, or those of a load that comes by layers."""

    lineage: str
    keys: list[TierKey] = field(default_factory=list)
    coming: PendingLoad | None = None

    @property
    def num_pages(self) -> int:
        """How many pages."""
        return len(self.keys)


@dataclass
class TierGain:
    """What the fetches from one tier took, and what they were good for.

    `fetch_s`: from their start to their arrival. `num_tokens` went into a request's blocks, the
    others in vain; `recompute_s`: what computing those again was predicted to take.
    """

    fetch_s: float = 0.0
    num_tokens: int = 0
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
    num_left_out_pages: int = 0  # that requests began without, though a tier has them
    num_late_pages: int = 0  # of those, written into their tables later
    last_load_s: float = 0.0
    last_recompute_s: float = 0.0
    gains: dict[str, TierGain] = field(default_factory=dict)  # by tier

    def fetched(self, tiers: dict[str, int], seconds: float) -> None:
        """Count the time of a finished fetch, shared among its pages, given by tier."""
        for tier, count in tiers.items():
            gain = self.gains.setdefault(tier, TierGain())
            gain.fetch_s += seconds * count / sum(tiers.values())

    def came_by_layers(self, tiers: Sequence[str], wait_s: float, failed: bool, late: bool) -> None:
        """Count a load by layers: its pages' tiers, and how long its step stood still for it."""
        self.fetched(Counter(tiers), wait_s)
        if failed:
            self.num_failed_pages += 1
            self.num_late_loads += late
        else:
            self.num_loaded_pages += len(tiers)
            self.last_load_s = wait_s

    def used(self, tiers: dict[str, int], block_tokens: int, each_s: float) -> None:
        """Count fetched pages that a request took, by tier; `each_s`: to compute one again."""
        for tier, count in tiers.items():
            gain = self.gains.setdefault(tier, TierGain())
            gain.num_tokens += count * block_tokens
            gain.recompute_s += each_s * count
