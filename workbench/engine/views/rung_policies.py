"""Which policies a tier's blocks are under, for its rung of the ladder, by the settings' words.

placement   which block leaves        write       when blocks come down to it
admission   which blocks it takes     codec       how they are packed there
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

ITSELF = "itself"  # the placement of a pool that evicts by itself


def rung_policies(engine: "Engine", name: str) -> dict[str, str]:
    """Policies by what they decide; empty for a tier that is off."""
    settings, mover = engine.config.tiers, engine.hierarchy.mover
    if name == "G1":
        return {"placement": engine.config.cache.eviction}
    if name == mover.dram.name:
        on = mover.dram.capacity_bytes > 0
        return {"placement": settings.policy, "write": settings.write} if on else {}
    tier = next(tier for tier in mover.ladder.tiers if tier.name == name)
    if not tier.on:
        return {}
    return {
        "placement": ITSELF if tier.evicts_itself else settings.policy,
        "write": settings.write,
        "admission": settings.admission,
        "codec": tier.edge.codec.name if tier.edge.codec is not None else "none",
    }
