"""Identity of cached KV: a SHA-256 chain over everything that shaped the bytes.

Two blocks are interchangeable only if tokens, parent chain, tenant, weights, tokenizer, RoPE and
every approximation on the way are equal. Never Python's `hash()`: it differs between processes.
Tagged fields keep kinds apart (vLLM #44701: a salt must not equal an adapter's name).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KEY_BYTES = 32
PrefixKey = bytes  # 32 bytes, SHA-256


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A block that only its request may read (a swapped tail); dies with the request.

    `epoch` counts the request's preemptions, so that a late write of an earlier swap is no hit.
    """

    request_id: str
    epoch: int
    group: int
    index: int


TierKey = PrefixKey | PrivateKey


def key_text(key: TierKey) -> str:
    """A key for people and events: hex, or request, epoch, group and index."""
    if isinstance(key, PrivateKey):
        return f"{key.request_id}/{key.epoch}/{key.group}/{key.index}"
    return key.hex()


@dataclass(frozen=True)
class CacheIdentity:
    """Everything but tokens that must match before bytes are shared.

    `numerics` names each approximation that shaped the bytes (formats, grouping, lossy codecs).
    """

    weights: str  # fingerprint of weights with their format
    tokenizer: str
    rope: str
    numerics: str
    block_size: int

    def root(self, salt: str) -> PrefixKey:
        """Key of the empty prefix for a tenant."""
        digest = hashlib.sha256(b"kv-workbench/1")
        for tag, value in (
            ("weights", self.weights),
            ("tokenizer", self.tokenizer),
            ("rope", self.rope),
            ("numerics", self.numerics),
            ("block_size", str(self.block_size)),
            ("salt", salt),
        ):
            field = value.encode()
            digest.update(f"|{tag}:{len(field)}:".encode() + field)
        return digest.digest()


def next_key(parent: PrefixKey, tokens: Sequence[int]) -> PrefixKey:
    """Key of the block that holds `tokens` after `parent`."""
    return hashlib.sha256(parent + np.asarray(tokens, dtype="<i8").tobytes()).digest()


def chain_keys(parent: PrefixKey, tokens: Sequence[int], block_size: int) -> list[PrefixKey]:
    """Keys of all full blocks of `tokens` that follow `parent`."""
    keys = []
    array = np.asarray(tokens, dtype="<i8")
    for start in range(0, len(array) - block_size + 1, block_size):
        parent = hashlib.sha256(parent + array[start : start + block_size].tobytes()).digest()
        keys.append(parent)
    return keys


def coded_lineage(lineage: str, tag: str) -> str:
    """The numerics tag of bytes of a lineage that came back from a lossy codec.

    It says that the codec lies on the way, not how often.
    """
    return lineage if tag in lineage.split("<") else f"{tag}<{lineage}"


def tagged_key(chain_key: PrefixKey, lineage: str) -> PrefixKey:
    """Key of a row: its chain key under the numerics tag of its bytes (`int8`, `int8<bf16`)."""
    return hashlib.sha256(chain_key + b"|numerics:" + lineage.encode()).digest()
