"""Placement policies: least recently used, measured cost, attention mass.

A policy of one's own is registered under a name as kind `placement`, and `tiers.policy` chooses it.
"""

from collections.abc import Sequence

from workbench.cache.placement import PlacementPolicy, StoredPage, TierState, faded

LEARN = 0.05  # of the newest mass in the running mean


class LruPlacement(PlacementPolicy):
    """The page unused for longest leaves, to the next tier that takes it."""

    by_recency = True

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        """The newer, the more; tables know that order themselves, and do not ask."""
        return -page.idle_s


class CostPlacement(PlacementPolicy):
    """The page whose absence would cost the fewest seconds per byte leaves.

        load_s(tier)  = backlog + latency + bytes / bandwidth               (measured)
        saved(tokens) = min(recompute_s(tokens), load_s of each tier below) - load_s(where it lies)
        keep          = (reuse * saved(its tokens) + saved(remaining tokens)) / bytes

    `reuse` counts uses that fade with a half-life of 60 s, `remaining tokens` those that waiting
    requests would lose. A page goes down to a tier only if what it is expected to save there is
    more than writing it keeps the link busy, `uses * (recompute_s - load_s) > store_s`, and to the
    tier where that is most; so a tier that is slower than computing gets none, and a busy link
    fewer. Sources: load and recompute time as in the reference on tiers, 1.13 (fetch only if load
    < recompute); fading use counts as in LMCache's cost-aware policy, 1.1; worth per byte after
    GreedyDual-Size-Frequency. Before the time to compute was measured, the most used stay.
    """

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        """Seconds per byte that it saves here."""
        if page.recompute_s is None or page.remaining_s is None:
            return page.reuse / page.charged_bytes
        here_s = at.load_s(page.page_bytes)
        below_s = min((tier.load_s(page.page_bytes) for tier in below), default=float("inf"))
        worth = page.reuse * (min(page.recompute_s, below_s) - here_s)
        if page.remaining_tokens:
            worth += min(page.remaining_s, below_s) - here_s
        return worth / page.charged_bytes

    def takers(self, page: StoredPage, below: Sequence[TierState]) -> Sequence[str]:
        """Tiers where it saves more than its way there costs, the best first."""
        if page.recompute_s is None or page.remaining_s is None:
            return super().takers(page, below)
        gains = {}
        for tier in below:
            load_s = tier.load_s(page.page_bytes)
            gain_s = page.reuse * (page.recompute_s - load_s)
            if page.remaining_tokens:
                gain_s += page.remaining_s - load_s
            gains[tier.name] = gain_s - tier.store_s(page.page_bytes)
        worth = [name for name, gain_s in gains.items() if gain_s > 0]
        return sorted(worth, key=lambda name: -gains[name])


class ImportancePlacement(PlacementPolicy):
    """The page that queries gave least attention leaves; old observations fade (60 s half-life).

    A page that was never observed counts as the mean of those that were.
    """

    needs_mass = True

    def __init__(self) -> None:
        self._usual = 0.0

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        """Its faded attention mass per byte."""
        if page.mass is None:
            mass = self._usual
        else:
            mass = page.mass
            self._usual += (LEARN if self._usual else 1.0) * (mass - self._usual)
        return faded(mass, page.idle_s) / page.charged_bytes
