"""Settings of the temporal dimension: which requests the next step runs."""

from dataclasses import dataclass

from workbench.settings.declare import Section, setting


@dataclass(frozen=True)
class SchedulingSettings(Section, section="scheduling"):
    """What runs in the next step (vLLM V1's rule: one token budget, no phases)."""

    order: str = setting(
        "fcfs",
        change="hot",
        dim="T",
        choices=("fcfs", "priority", "longest-prefix-first"),
        main=True,
    )
    token_budget: int = setting(
        256, change="hot", dim="T", low=1, high=16384, unit="tokens per step", main=True
    )
    max_num_seqs: int = setting(16, change="hot", dim="T", low=1, high=512, unit="requests")
    chunk_tokens: int = setting(
        128,
        change="hot",
        dim="T",
        low=1,
        high=16384,
        unit="prefill tokens per request and step",
        main=True,
    )
    preemption: str = setting(
        "recompute", change="hot", dim="T", choices=("recompute", "swap"), main=True
    )
    watermark: float = setting(0.01, change="hot", dim="T", low=0.0, high=0.5, unit="share")
    admit_whole_prompt: bool = setting(True, change="hot", dim="T")
