"""Memory-hierarchy orchestration (MHO): KV pages in the tiers below HBM."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.hierarchy import Hierarchy

__all__ = ["Hierarchy"]


def __getattr__(name: str) -> Any:
    # Late, so that the shared store's process starts without torch (a second and 200 MB less).
    if name == "Hierarchy":
        from workbench.spatial.hierarchy.hierarchy import Hierarchy

        return Hierarchy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
