"""The implementations that come with the workbench, registered by name."""

from workbench.registry import Registry
from workbench.structural.retention.policies import AttentionMass, KeepAll, SinkWindow
from workbench.temporal.scheduling.order import Fcfs, LongestPrefixFirst, Priority


def builtin_registry() -> Registry:
    """A fresh registry; add policies of your own before passing it to an engine."""
    registry = Registry()
    registry.register("order", "fcfs", Fcfs)
    registry.register("order", "priority", Priority)
    registry.register("order", "longest-prefix-first", LongestPrefixFirst)
    registry.register("retention", "none", KeepAll)
    registry.register("retention", "sink+window", SinkWindow)
    registry.register("retention", "attention-mass", AttentionMass)
    return registry
