"""The implementations that come with the workbench, registered by name."""

from workbench.cache.prefix_index import HashIndex
from workbench.cache.radix_index import RadixIndex
from workbench.registry import Registry
from workbench.spatial.hierarchy.placement import (
    CostPlacement,
    ImportancePlacement,
    LruPlacement,
)
from workbench.structural.compression.byte_planes import BytePlanes
from workbench.structural.compression.cachegen import CacheGen
from workbench.structural.retention.eviction import (
    Arc,
    CostAware,
    Fifo,
    Lfu,
    Lru,
    Predictive,
    Slru,
)
from workbench.structural.retention.policies import (
    AttentionMass,
    ExpectedAttention,
    HeavyHitters,
    KeepAll,
    KeyNorm,
    Random,
    SinkWindow,
    SnapKV,
    Tova,
)
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
    registry.register("retention", "h2o", HeavyHitters)
    registry.register("retention", "snapkv", SnapKV)
    registry.register("retention", "tova", Tova)
    registry.register("retention", "key-norm", KeyNorm)
    registry.register("retention", "expected-attention", ExpectedAttention)
    registry.register("retention", "random", Random)
    registry.register("codec", "none", lambda: None)
    registry.register("codec", "planes+zstd", BytePlanes)
    registry.register("codec", "cachegen", CacheGen)
    registry.register("eviction", "lru", Lru)
    registry.register("eviction", "fifo", Fifo)
    registry.register("eviction", "lfu", Lfu)
    registry.register("eviction", "slru", Slru)
    registry.register("eviction", "arc", Arc)
    registry.register("eviction", "cost-aware", CostAware)
    registry.register("eviction", "predictive", Predictive)
    registry.register("index", "hash", HashIndex)
    registry.register("index", "radix", RadixIndex)
    registry.register("placement", "lru", LruPlacement)
    registry.register("placement", "cost", CostPlacement)
    registry.register("placement", "importance", ImportancePlacement)
    return registry
