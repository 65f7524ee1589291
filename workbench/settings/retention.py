"""Settings of retention: which tokens of a running request stay, and which of them are read."""

from dataclasses import dataclass

from workbench.settings.declare import Section, setting

RETENTION_POLICIES = (
    "none", "sink+window", "attention-mass", "h2o", "snapkv", "tova", "key-norm",
    "expected-attention", "random",
)  # fmt: skip
SPARSE_READS = ("off", "quest", "landmarks")  # all pages, or those chosen by bounds or mean keys
MERGES = ("off", "nearest", "cam")  # what a dropped token leaves to those that stay
GQA_REDUCTIONS = ("mean", "max", "sum")  # of the query heads that share a KV head
BUDGET_SPLITS = ("uniform", "pyramid", "ada", "ada+pyramid")  # among layers, among heads, both
POSITIONS = ("original", "compact")  # in the text, or among the stored tokens


@dataclass(frozen=True)
class RetentionSettings(Section, section="retention"):
    """Which tokens of a running request stay."""

    policy: str = setting("none", change="hot", dim="X", choices=RETENTION_POLICIES, main=True)
    budget_tokens: int = setting(
        256, change="hot", dim="X", low=16, high=131072, unit="tokens per request", main=True
    )
    sink_tokens: int = setting(16, change="hot", dim="X", low=0, high=4096, unit="tokens")
    window_tokens: int = setting(64, change="hot", dim="X", low=1, high=131072, unit="tokens")
    level: str = setting("page", change="hot", dim="X", choices=("page", "token"))
    when: str = setting("both", change="hot", dim="X", choices=("both", "prefill", "decode"))
    split: str = setting("uniform", change="hot", dim="X", choices=BUDGET_SPLITS)
    ada_floor: float = setting(
        0.2, change="hot", dim="X", low=0.0, high=1.0, unit="share of an equal budget"
    )
    positions: str = setting("original", change="rebuild", dim="X", choices=POSITIONS)
    gqa_reduce: str = setting("mean", change="hot", dim="X", choices=GQA_REDUCTIONS)
    merge: str = setting("off", change="hot", dim="X", choices=MERGES)
    merge_cosine: float = setting(0.6, change="hot", dim="X", low=-1.0, high=1.0)
    sparse: str = setting("off", change="hot", dim="X", choices=SPARSE_READS)
    sparse_pages: int = setting(
        4, change="hot", dim="X", low=1, high=65536, unit="pages per token and layer"
    )
    sparse_share: float = setting(
        0.125, change="hot", dim="X", low=0.0, high=1.0, unit="share of the pages"
    )
    sparse_outliers: int = setting(  # beside 4 pages as ShadowKV's 48 beside 256
        1, change="hot", dim="X", low=0, high=65536, unit="pages per token and layer"
    )
    sparse_dense_layers: int = setting(2, change="hot", dim="X", low=0, high=1024, unit="layers")
