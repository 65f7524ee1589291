"""KV-cache co-design workbench: a real paged engine whose temporal, spatial and structural
behaviours change while it runs, and are measured."""

__version__ = "0.1.0"
