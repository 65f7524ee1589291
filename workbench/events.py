"""KV events in vLLM's schema (msgpack), so that one viewer and one router serve this engine and
vLLM, plus the engine's own events told in plain words.

Schema: vLLM 0.32 `distributed/kv_events.py`, classes BlockStored, BlockRemoved, AllBlocksCleared
and KVEventBatch. A batch is an array [ts, events, rank]; an event is a map whose `type` is the
class name. Batches are numbered from 0 where they leave the engine's process.
`tests/peers/kv_events_vllm.py` decodes them with vLLM's own classes.
"""

from typing import Any

import msgspec

ExternalBlockHash = bytes | int


class KVCacheEvent(msgspec.Struct, gc=False, tag=True):
    """Base of the three events; every field is written, for vLLM requires some that may be None."""


class BlockStored(KVCacheEvent):
    """Full blocks became visible to prefix lookup on a medium: GPU, CPU or STORAGE.

    `ownership` names the tier where several are STORAGE.
    """

    block_hashes: list[ExternalBlockHash]
    parent_block_hash: ExternalBlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    ownership: str | None = None


class BlockRemoved(KVCacheEvent):
    """Blocks are no longer visible to prefix lookup on this medium."""

    block_hashes: list[ExternalBlockHash]
    medium: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    """Every block was dropped."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Events of one step with their time stamp."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


# Numbers of one engine process: the next one's are all larger, however many of these were lost when
# it died, and `seq // EVENTS_PER_PROCESS` tells which process it was. Doubles hold them exactly.
EVENTS_PER_PROCESS = 2**40


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, for people: `kind` is one of EVENT_KINDS, `data` its numbers.

    `seq` grows as long as a client lives, over reloads and restarts of the engine too; every engine
    begins with an event of kind `engine`. A sentence is made from kind and data by the app's text
    files, so that it can be translated.
    """

    seq: int
    step: int
    time_s: float
    kind: str
    request_id: str = ""
    data: dict[str, Any] = {}


EVENT_KINDS = (
    "admit",
    "share",
    "evict",
    "store",
    "load",
    "preempt",
    "resume",
    "finish",
    "abort",
    "fail",
    "apply",
    "retain",
    "tier_fault",
    "refuse",
    "thrash",
    "engine",
)
