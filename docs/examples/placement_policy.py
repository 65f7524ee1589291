"""A placement policy of one's own: what the beginning of a text saves is kept longest.

    workbench run thrash --policy docs/examples/placement_policy.py --set tiers.policy=beginnings \
        --set tiers.dram_mib=8 --set tiers.disk_mib=64

In the dashboard: the page Tiers, *Your policy*.
"""

from collections.abc import Sequence

from workbench.cache.placement import PlacementPolicy, StoredPage, TierState
from workbench.registry import Registry


class Beginnings(PlacementPolicy):
    """Pages near the beginning of a text are shared most often; of those compared, late ones go."""

    def keep(self, page: StoredPage, at: TierState, below: Sequence[TierState]) -> float:
        """The earlier its first token and the more it was used, the more a page is worth."""
        return page.reuse / (1.0 + page.first_token)

    def takers(self, page: StoredPage, below: Sequence[TierState]) -> Sequence[str]:
        """Go down only where the link is not busy for longer than computing it again would take."""
        again_s = page.recompute_s or float("inf")
        return [tier.name for tier in below if tier.backlog_s < again_s]


def register(registry: Registry) -> None:
    """Make it a choice of `tiers.policy`."""
    registry.register("placement", "beginnings", Beginnings)
