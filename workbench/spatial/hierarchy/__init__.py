"""Memory-hierarchy orchestration (MHO): KV pages in DRAM (G2) and on local disk (G3) below HBM."""

from workbench.spatial.hierarchy.hierarchy import Hierarchy

__all__ = ["Hierarchy"]
