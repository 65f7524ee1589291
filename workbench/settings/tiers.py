"""Settings of the spatial dimension: the tiers below HBM."""

from dataclasses import dataclass

from workbench.errors import SettingError
from workbench.settings.addresses import secret_part
from workbench.settings.declare import Section, setting

DISK_TRANSPORTS = ("direct", "nixl", "kvikio")  # beyond the first: optional packages
SHARED_TRANSPORTS = ("direct", "nixl")
OBJECT_TRANSPORTS = ("direct", "nixl")
DISK_LAYOUTS = ("block_first", "layer_first")
OBJECT_SPLITS = ("order", "equal", "slack")
BACKPRESSURES = ("off", "wait", "refuse")
DISK_CODECS = ("none", "planes+zstd", "cachegen")
SHARED_TIERS = ("off", "store", "valkey", "mooncake")  # the last: an optional package
WRITES = ("back", "through", "selective")
RETRIEVALS = ("all", "late", "skip")  # of pages with little attention mass
PREFETCHES = ("wait", "timeout", "best_effort")
INCLUSIONS = ("inclusive", "exclusive")
LOADS = ("whole", "layerwise")
PLACEMENTS = ("lru", "cost", "importance")  # and what an engine's registry has besides
ADMISSIONS = ("presence", "frequency", "tinylfu")
FLOAT_CODECS = ("cachegen",)  # of numbers, not of bytes: pages have to hold them as they are


@dataclass(frozen=True)
class TierSettings(Section, section="tiers"):
    """DRAM, disk, a shared store and objects below HBM. A size of 0 switches a tier off.

    Addresses hold no secrets: credentials come from the environment alone.
    """

    dram_mib: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=65536, unit="MiB", main=True
    )
    disk_mib: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=1048576, unit="MiB", main=True
    )
    disk_path: str = setting("", change="hot", dim="S")
    policy: str = setting(
        "lru", change="hot", dim="S", choices=PLACEMENTS, own="placement", main=True
    )
    gate: bool = setting(True, change="hot", dim="S")
    disk_codec: str = setting("none", change="hot", dim="S", choices=DISK_CODECS)
    disk_transport: str = setting("direct", change="hot", dim="S", choices=DISK_TRANSPORTS)
    disk_layout: str = setting("block_first", change="hot", dim="S", choices=DISK_LAYOUTS)
    disk_coalesce: bool = setting(True, change="hot", dim="S")
    dram_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )
    disk_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )
    disk_keep: bool = setting(False, change="hot", dim="S")
    shared: str = setting("off", change="hot", dim="S", choices=SHARED_TIERS)
    shared_address: str = setting("", change="hot", dim="S")
    shared_mib: float = setting(1024.0, change="hot", dim="S", low=0.0, high=1048576, unit="MiB")
    shared_transport: str = setting("direct", change="hot", dim="S", choices=SHARED_TRANSPORTS)
    shared_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )
    object_url: str = setting("", change="hot", dim="S")
    object_mib: float = setting(4096.0, change="hot", dim="S", low=0.0, high=16777216, unit="MiB")
    object_transport: str = setting("direct", change="hot", dim="S", choices=OBJECT_TRANSPORTS)
    object_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )
    object_split: str = setting("order", change="hot", dim="S", choices=OBJECT_SPLITS)
    backpressure: str = setting("off", change="hot", dim="S", choices=BACKPRESSURES)
    backlog_s: float = setting(1.0, change="hot", dim="S", low=0.0, high=60.0, unit="s")
    write: str = setting("back", change="hot", dim="S", choices=WRITES)
    write_hits: int = setting(2, change="hot", dim="S", low=1, high=1000, unit="hits")
    inclusive: str = setting("inclusive", change="hot", dim="S", choices=INCLUSIONS)
    admission: str = setting("presence", change="hot", dim="S", choices=ADMISSIONS)
    watermark: float = setting(
        1.0, change="hot", dim="S", low=0.1, high=1.0, unit="share of a tier (1 = off)"
    )
    evict_ratio: float = setting(
        0.05, change="hot", dim="S", low=0.0, high=0.9, unit="share of a tier"
    )

    load: str = setting("whole", change="hot", dim="T", choices=LOADS)
    prestage: bool = setting(False, change="hot", dim="S")
    prefetch: str = setting("wait", change="hot", dim="S", choices=PREFETCHES)
    prefetch_base_s: float = setting(2.0, change="hot", dim="S", low=0.0, high=600.0, unit="s")
    prefetch_per_ki_s: float = setting(
        0.1, change="hot", dim="S", low=0.0, high=60.0, unit="s for each 1,024 tokens"
    )
    prefetch_most_s: float = setting(30.0, change="hot", dim="S", low=0.0, high=600.0, unit="s")
    retrieval: str = setting("all", change="hot", dim="S", choices=RETRIEVALS)
    retrieval_share: float = setting(
        0.95, change="hot", dim="S", low=0.0, high=1.0, unit="share of the attention mass"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shared_address", "object_url"):
            part = secret_part(getattr(self, name))
            if part:
                raise SettingError(
                    f"tiers.{name} may hold no {part}, which would be shown and saved: leave it "
                    "out, and set credentials in the environment"
                )
        if self.disk_keep and not self.disk_path:
            raise SettingError(
                "tiers.disk_keep = true keeps the disk tier's file, but tiers.disk_path is empty: "
                "give it a folder that is yours"
            )

        if self.disk_layout == "layer_first" and self.disk_codec != "none":
            raise SettingError(
                "tiers.disk_layout = layer_first puts each layer of a page elsewhere, but "
                f"tiers.disk_codec = {self.disk_codec} packs a page into one blob: choose "
                "block_first, or no codec"
            )

    @property
    def any_on(self) -> bool:
        """Whether any tier below HBM is switched on."""
        shared = self.shared != "off" and self.shared_mib > 0
        objects = bool(self.object_url) and self.object_mib > 0
        return self.dram_mib > 0 or self.disk_mib > 0 or shared or objects
