"""Settings of the spatial dimension: the tiers below HBM."""

from dataclasses import dataclass

from workbench.settings.declare import Section, setting

DISK_CODECS = ("none", "planes+zstd", "cachegen")
WRITES = ("back", "through", "selective")
INCLUSIONS = ("inclusive", "exclusive")
ADMISSIONS = ("presence", "frequency", "tinylfu")
FLOAT_CODECS = ("cachegen",)  # of numbers, not of bytes: pages have to hold them as they are


@dataclass(frozen=True)
class TierSettings(Section, section="tiers"):
    """DRAM and disk below HBM. A size of 0 switches a tier off."""

    dram_mib: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=65536, unit="MiB", main=True
    )
    disk_mib: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=1048576, unit="MiB", main=True
    )
    disk_path: str = setting("", change="hot", dim="S")
    policy: str = setting("lru", change="hot", dim="S", choices=("lru",), main=True)
    gate: bool = setting(True, change="hot", dim="S")
    disk_codec: str = setting("none", change="hot", dim="S", choices=DISK_CODECS)
    dram_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )
    disk_throttle_mb_s: float = setting(
        0.0, change="hot", dim="S", low=0.0, high=100000, unit="MB/s (0 = off)"
    )
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
