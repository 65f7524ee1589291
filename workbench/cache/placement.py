"""Which page leaves a tier and which tier gets it: the protocol, and what a policy is shown.

A policy sees copies of facts, never an entry: it gives numbers and names, and nothing that is
pinned, leased or being written is shown to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from workbench.cache.keys import PrefixKey, TierKey

if TYPE_CHECKING:
    from workbench.cache.block_pool import BlockPool
    from workbench.cache.prefix_index import Row

HALF_LIFE_S = 60.0  # of what a use counts (LMCache's cost_aware_half_life_seconds)


def faded(value: float, seconds: float) -> float:
    """What is left of a value after so many seconds."""
    return float(value * 2.0 ** (-max(0.0, seconds) / HALF_LIFE_S))


@dataclass(eq=False, slots=True)
class PageFacts:
    """What is known of a page wherever it lies; all tiers that hold it share one.

    `mass`: share of its attention that a query which could see them gave the page's tokens, mean
    over layers and heads; None while it was not observed. `num_hits`: while it was in HBM. `uses`
    fade with a half-life of 60 s; storing it is the first. `token_ids` and `parent_key` are those
    of its row, empty where another process has written it.
    """

    num_tokens: int = 0
    first_token: int = 0
    mass: float | None = None
    num_hits: int = 0
    uses: float = 0.0
    used_s: float = 0.0
    token_ids: tuple[int, ...] = ()
    parent_key: PrefixKey | None = None

    def use(self, now_s: float) -> None:
        """It was stored or asked for now."""
        self.uses = faded(self.uses, now_s - self.used_s) + 1.0
        self.used_s = now_s

    def renew(self, seen: "PageFacts") -> None:
        """It was in HBM again meanwhile."""
        self.num_tokens, self.first_token = seen.num_tokens, seen.first_token
        self.token_ids, self.parent_key = seen.token_ids, seen.parent_key
        self.num_hits = max(self.num_hits, seen.num_hits)
        self.mass = self.mass if seen.mass is None else seen.mass


def facts_of(pool: "BlockPool", row: "Row") -> PageFacts:
    """What is known of a row in HBM; its mass is that of its newest reader."""
    num_tokens = len(row.token_ids)
    mass = float(pool.mass[list(row.blocks)].mean()) * num_tokens
    return PageFacts(
        num_tokens, row.page * num_tokens, mass or None, row.num_hits,
        token_ids=row.token_ids, parent_key=row.parent_key,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredPage:
    """One page of a tier as a policy sees it. Sizes in bytes, times in seconds.

    `reuse`: uses that fade, at least the one that stored it. `remaining_tokens`: how many tokens
    waiting requests would have to compute again if the page were gone, from it to the end of their
    texts. `recompute_s` and `remaining_s`: measured time to compute its tokens, and those; None
    before anything was measured.
    """

    key: TierKey
    page_bytes: int
    charged_bytes: int
    num_tokens: int
    first_token: int
    mass: float | None
    reuse: float
    idle_s: float
    remaining_tokens: int
    recompute_s: float | None
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class TierState:
    """One tier as a policy sees it: its measured costs, and what is queued on its link now."""

    name: str
    capacity_bytes: int
    used_bytes: int
    load_latency_s: float
    load_s_per_byte: float
    store_latency_s: float
    store_s_per_byte: float
    backlog_s: float

    def load_s(self, num_bytes: int) -> float:
        """Seconds to read so many bytes, behind what is queued."""
        return self.backlog_s + self.load_latency_s + num_bytes * self.load_s_per_byte

    def store_s(self, num_bytes: int) -> float:
        """Seconds that writing so many bytes keeps the link busy."""
        return self.store_latency_s + num_bytes * self.store_s_per_byte


class PlacementPolicy(Protocol):
    """Chooses what leaves a full tier, and where it goes; subclass it, or have its members.

    `by_recency`: the least recently used page leaves, and `keep` is never asked. `needs_mass`: the
    engine observes attention mass where a prompt ends, and now and then. Asked of pages that have
    to leave a tier; which copies are made before that, `tiers.write` says.
    """

    by_recency: bool = False
    needs_mass: bool = False

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        """How much the page is worth where it lies: of those compared, the smallest leaves.

        `below`: the lower tiers that are on, from the top.
        """
        raise NotImplementedError

    def takers(self, page: StoredPage, below: Sequence[TierState]) -> Sequence[str]:
        """Names of the lower tiers that may get a page that leaves, best first; none drops it."""
        return [tier.name for tier in below]
