"""Settings of the paged KV cache: its bytes, the geometry and formats of its pages, its reuse."""

import itertools
from dataclasses import dataclass

from workbench.layer_plan import parse_plan
from workbench.settings.declare import Section, setting
from workbench.settings.formats import KIVI_GROUPS, KV_FORMATS, KVQUANT_FORMATS, LOW_RANK_FORMATS

BLOCK_SIZES = (4, 8, 16, 32, 64)
GROUPINGS = ("model", "halves", "layer", "head")  # which layers and heads share a page
EVICTION_ORDERS = ("lru", "fifo", "lfu", "slru", "arc", "cost-aware", "predictive")
PREFIX_INDEXES = ("hash", "radix")  # how a text's cached prefix is found
BASES = ("calibrated", "sequence")  # of low rank: measured of the model, or of each request's keys
VALUE_PLACES = ("hbm", "dram")  # where V of full pages lies; K stays in HBM
KVQUANT_SINKS = 5  # KVQuant (arXiv 2401.18079) keeps the first 1 to 5 tokens in fp16
PROMPT_CACHING = ("automatic", "explicit")  # whatever is cached may be hit, or what was marked


@dataclass(frozen=True)
class CacheSettings(Section, section="cache"):
    """Bytes, pages and formats of the paged KV cache."""

    hbm_budget_mib: float = setting(
        64.0, change="rebuild", dim="S", low=0.0625, high=65536, unit="MiB", main=True
    )
    block_size: int = setting(16, change="rebuild", dim="X", choices=BLOCK_SIZES, unit="tokens")
    grouping: str = setting("model", change="rebuild", dim="X", choices=GROUPINGS)
    k_format: str = setting("bf16", change="recode", dim="X", choices=KV_FORMATS, main=True)
    v_format: str = setting("bf16", change="recode", dim="X", choices=KV_FORMATS, main=True)
    layer_plan: str = setting("", change="recode", dim="X")
    kivi_group: int = setting(0, change="recode", dim="X", choices=KIVI_GROUPS)
    residual_tokens: int = setting(
        0, change="recode", dim="X", low=0, high=4096, unit="tokens per request"
    )
    sink_tokens: int = setting(
        -1, change="recode", dim="X", low=-1, high=1024, unit="tokens (-1 = 5 with KVQuant)"
    )
    outlier_pages: int = setting(
        0, change="recode", dim="X", low=0, high=4096, unit="pages per request"
    )
    values: str = setting("hbm", change="rebuild", dim="S", choices=VALUE_PLACES)
    mode: str = setting("on", change="rebuild", dim="X", choices=("on", "off"))
    allocation: str = setting("paged", change="rebuild", dim="X", choices=("paged", "contiguous"))
    prefix_caching: bool = setting(True, change="hot", dim="X")
    partial_hits: bool = setting(False, change="hot", dim="X")
    index: str = setting("hash", change="hot", dim="X", choices=PREFIX_INDEXES)
    rank: int = setting(0, change="recode", dim="X", low=0, high=1024, unit="numbers (0 = half)")
    rank_plan: str = setting("", change="recode", dim="X")
    rank_heads: int = setting(1, change="recode", dim="X", low=1, high=64, unit="joined KV heads")
    basis: str = setting("calibrated", change="rebuild", dim="X", choices=BASES)
    calibration: str = setting("needed", change="rebuild", dim="X")
    prompt_caching: str = setting("automatic", change="hot", dim="X", choices=PROMPT_CACHING)
    min_cacheable_tokens: int = setting(
        64, change="hot", dim="X", low=1, high=131072, unit="tokens"
    )
    eviction: str = setting("lru", change="hot", dim="X", choices=EVICTION_ORDERS)
    reuse: str = setting("recoded", change="hot", dim="X", choices=("recoded", "exact"))

    @property
    def used_formats(self) -> set[str]:
        """Every format that pages can have, of K and of V."""
        plan = parse_plan(self.layer_plan, KV_FORMATS)
        return {self.k_format, self.v_format, *itertools.chain(*plan.values())}

    @property
    def num_sinks(self) -> int:
        """First tokens of a text that stay exact."""
        if self.sink_tokens >= 0:
            return self.sink_tokens
        return KVQUANT_SINKS if self.used_formats & set(KVQUANT_FORMATS) else 0

    @property
    def own_basis(self) -> bool:
        """Whether each request's keys are stored in a basis of its own."""
        return self.basis == "sequence" and bool(self.key_formats & set(LOW_RANK_FORMATS))

    @property
    def value_formats(self) -> set[str]:
        """Every format that V can have."""
        plan = parse_plan(self.layer_plan, KV_FORMATS)
        return {self.v_format, *(formats[1] for formats in plan.values())}

    @property
    def key_formats(self) -> set[str]:
        """Every format that K can have."""
        plan = parse_plan(self.layer_plan, KV_FORMATS)
        return {self.k_format, *(formats[0] for formats in plan.values())}
