"""The facts and figures that a snapshot consists of, besides those its cells are laid out by."""

from typing import Any, Literal

import msgspec


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that says where it comes from.

    `value` None means not available, for the reason in `why`. `provenance`: measured, throttled,
    modelled, interpolated or refused. `samples` and `window_s` are 0 where they mean nothing.
    `after` and `after_samples`: the same over the samples since the last applied change alone.
    """

    value: float | None
    unit: str
    provenance: str = "measured"
    percentile: str = ""
    samples: int = 0
    window_s: float = 0.0
    why: str = ""
    after: float | None = None
    after_samples: int = 0


class PageClassView(msgspec.Struct, frozen=True, kw_only=True):
    """One page class: its format label and bytes."""

    label: str
    k_format: str
    v_format: str
    page_bytes: int
    group: str
    bits_per_element: float


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """Occupancy and traffic of one tier; rates in bytes/s over the engine's last two seconds."""

    name: str  # G1, G2, G3
    medium: str  # "HBM", "HBM (CPU memory stands in)", "DRAM", "disk"
    enabled: bool
    capacity_bytes: int
    used_bytes: int  # owned by requests: tables (G1), swapped or pinned entries (others)
    cached_bytes: int  # evictable prefix blocks; used + cached + free = capacity
    free_bytes: int
    pinned_bytes: int
    in_bytes_per_s: float  # towards this tier
    out_bytes_per_s: float  # from this tier up
    in_bytes_total: int
    out_bytes_total: int
    num_entries: int
    hits: int
    misses: int
    faults: int
    provenance: str  # measured | throttled
    note: str = ""
    failed: str = ""  # reason of the last fault when many followed each other, else empty
    num_failed: int = 0  # faults since the last transfer that went well
    policies: dict[str, str] = {}  # what decides over its blocks: placement, write, ... -> a word


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """The last step: its batch and where its time went, in ms; the parts add up to `wall_ms`.

    `gather_ms` and `dequant_ms` are None on a GPU: they happen inside the attention kernel.
    """

    step: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_requests: int
    wall_ms: float
    cpu_ms: float
    attention_ms: float
    linears_ms: float
    gather_ms: float | None
    dequant_ms: float | None
    scheduler_ms: float
    other_ms: float


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the memory ledger, in bytes.

    `place`: resident in this process, on the device, or reserved and not yet written: then its name
    begins with `reserved:`.
    """

    name: str  # weights, kv:<class>, metadata, scratch, slab_waste, calibration, shadow, dram_tier
    num_bytes: int
    detail: str = ""
    place: Literal["process", "device", "reserved"] = "process"


WeightNoteKind = Literal["kept", "moved", "auto"]


class WeightNote(msgspec.Struct, frozen=True, kw_only=True):
    """What to know of the loaded weights; `values` are the numbers and names of its sentence.

    `kept`: a `stored` type is held as `format`. `moved`: `format` was asked for, and `device` gets
    bf16. `auto`: as stored up to `rows` rows a step, bf16 above, so that tokens depend on the
    schedule.
    """

    kind: WeightNoteKind
    values: dict[str, Any] = {}

    def plain(self) -> str:
        """The sentence for a terminal; the dashboard has its own in each language."""
        return _WEIGHT_NOTES[self.kind].format(**self.values)


_WEIGHT_NOTES = {
    "kept": "{stored} weights kept as {format}",
    "moved": "{format} weights run as bf16 on {device}: packed ones are for CPUs only",
    "auto": "auto: weights as stored up to {rows} rows a step, bf16 above, so tokens depend on the "
    "schedule",
}


class ShadowView(msgspec.Struct, frozen=True, kw_only=True):
    """One running request against the same text in full precision.

    KL and agreement are means over the `num_scored_tokens` of `num_positions` that read something
    compressed or evicted; where none does, over all.
    """

    request_id: str
    num_scored_tokens: int
    num_positions: int
    kl_mean: float
    kl_last: float
    agreement: float
    first_differing_token: int  # -1: none so far
    differing_text: str = ""
    state: str = "running"  # running | finished | failed


class IntegrityView(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the last invariant check."""

    ok: bool
    step: int
    message: str = ""


class BlockView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the inspector shows of one block."""

    tier: str
    cell: int
    state: str
    owners: list[str]  # request ids whose tables hold it
    page_index: int  # logical page of the first owner, -1 if none
    first_token: int
    last_token: int
    ref_cnt: int
    key: str  # hex, empty if not hashed
    parent_key: str
    label: str  # format
    num_bytes: int
    last_used_step: int
    mass: float | None
    evict_rank: int  # 1 = next to go; 0 = not evictable
    num_evictable: int
    # Kind of reason: owned, shared, cached, free, pinned, private, stored; leased, held, soft.
    why: str
    text: str = ""
    held_s: float | None = None  # seconds of a lease or a soft pin that are left


ApplyNote = Literal[
    "disk_smaller_than_dram", "dram_smaller_than_hbm", "swap_without_tier", "cache_off_is_a_lesson",
    "contiguous_shares_nothing", "window_covers_prompts", "budget_below_window", "model_reloaded",
]  # fmt: skip


class ApplyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `Engine.apply` did, or (as a preview) would do."""

    version: int
    changes: dict[str, Any]  # path -> new value, as applied
    previous: dict[str, Any]  # path -> old value
    kinds: dict[str, str]  # path -> hot | recode | rebuild | restart
    num_recoded_blocks: int = 0
    num_evicted_blocks: int = 0
    num_preempted_requests: int = 0
    blocks_before: int = 0
    blocks_after: int = 0
    milliseconds: float = 0.0
    preview: bool = False
    notes: list[ApplyNote] = []
