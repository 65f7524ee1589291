"""The tier contract: what HBM's cache asks of slower memory (architecture, decision 6).

    lookup -> HIT | MISS | HIT_PENDING | RETRY
    prepare_load pins, complete_load unpins; prepare_store reserves, complete_store(ok) publishes.

Nothing is visible before it is written and its checksums are stored; every crossing verifies them.
A tier that fails is a counted miss: no method below raises for an I/O fault.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from workbench.cache.codec import CodedRow
from workbench.cache.keys import TierKey
from workbench.cache.placement import PageFacts

HOLD_S = 5.0  # how long a medium keeps what a waiting request will read, before it is asked anew


class Lookup(Enum):
    """Answer of a tier for one key."""

    HIT = "hit"
    MISS = "miss"
    HIT_PENDING = "hit_pending"  # written soon: ask again after the next poll
    RETRY = "retry"  # the tier is busy: ask again later


@dataclass(frozen=True)
class LoadResult:
    """A finished load: `pages[i]` is a verified uint8 [page_bytes] array, or None (a counted miss).

    Arrays are views of pinned tier memory, valid until `complete_load(job_id)`. Of a load that was
    submitted without `verify`, whoever copies a page compares it with `checksums[i]`, the xxh3-64
    of its slices, unless that is empty.
    """

    job_id: int
    keys: tuple[TierKey, ...]
    pages: tuple[np.ndarray | None, ...]
    tiers: tuple[str, ...]  # which tier served each key, e.g. "G2"
    seconds: float
    checksums: tuple[tuple[int, ...], ...] = ()  # of each page; empty where all are verified


@dataclass(frozen=True)
class SliceSpan:
    """When one slice of a job's pages moved up from a tier, in seconds of the engine's clock."""

    tier: str
    number: int
    start_s: float
    end_s: float


class WhatIsKnown(Protocol):
    """Whether keys can be loaded, and how long that would take; the engine thread alone asks."""

    def lookup(self, key: TierKey) -> Lookup:
        """Whether a key can be loaded; never blocks on I/O, and counts nothing."""

    def count(self, keys: Sequence[TierKey]) -> None:
        """Count one lookup of each key, by what each tier that is asked says of it now."""

    def know(self, keys: Sequence[TierKey]) -> bool:
        """Whether it is known of all keys where they lie; asks shared tiers about the others."""

    def num_at_hand(self, keys: Sequence[TierKey]) -> int:
        """How many leading keys lie in DRAM now."""

    def estimate_load_s(self, keys: Sequence[TierKey]) -> float:
        """Predicted seconds to load these keys from where they lie now (measured bandwidths)."""

    def masses_below(self, keys: Sequence[TierKey]) -> list[float | None]:
        """Carried attention mass of each key that only slow tiers have; None for all others."""


class LoadsBySlices(Protocol):
    """Jobs whose pages come up slice by slice; the engine thread alone calls it."""

    def possible(self, keys: Sequence[TierKey], num_slices: int) -> bool:
        """Whether all keys lie where they can be loaded by so many slices."""

    def begin(self, job_id: int, into: Sequence[np.ndarray] | None = None) -> None:
        """Start a job: by slices, into the pages' places in HBM where possible, or as a whole."""

    def wait(self, job_id: int, num_slices: int, timeout_s: float) -> bool:
        """Block until so many leading slices of a job's pages are there, or never will be."""

    def copy(self, job_id: int, number: int, write: Callable[[int, np.ndarray], None]) -> bool:
        """Verify one slice of every page; what is not in its place goes to `write(page, bytes)`."""

    def progress(self, job_id: int) -> tuple[tuple[str, ...], list[SliceSpan]]:
        """The tier of each page of a job, and when which slices moved so far."""


class BeforeTurn(Protocol):
    """What can be known and done for requests that wait; the engine thread alone calls it."""

    @property
    def can_stage(self) -> bool:
        """Whether there is DRAM that pages can come up to before their request's turn."""

    def num_held(self, keys: Sequence[TierKey]) -> int:
        """How many leading keys could be loaded now; counts no lookups."""

    def is_coming(self, key: TierKey) -> bool:
        """Whether a key is being written to a tier now."""

    def hold(self, keys: Sequence[TierKey]) -> None:
        """Ask media from which others evict to keep these keys for `HOLD_S`."""


class KVHierarchy(Protocol):
    """All tiers below HBM behind one interface; the engine thread alone calls it."""

    @property
    def before_turn(self) -> BeforeTurn:
        """What can be known and done for requests that wait."""

    @property
    def by_slices(self) -> LoadsBySlices:
        """How jobs of more than one slice are begun and taken."""

    @property
    def lookups(self) -> WhatIsKnown:
        """What the tiers know of a key."""

    def submit_load(
        self,
        keys: Sequence[TierKey],
        num_slices: int = 1,
        compute_s: float = 0.0,
        ahead: bool = False,
        verify: bool = True,
    ) -> int:
        """Pin the keys and start loading them; returns the job's id.

        With more than one slice nothing is read before `by_slices.begin`. `compute_s`: seconds of
        compute that the load can hide behind, infinite where nobody waits. `ahead`: nobody takes
        the pages yet, they come as far as DRAM. Without `verify` the caller verifies as it copies,
        and tells `copied` or `spoiled`.
        """

    def copied(self, job_id: int, key: TierKey, seconds: float) -> None:
        """A page of a load was verified and copied, which took so long."""

    def spoiled(self, job_id: int, key: TierKey) -> None:
        """A page of a load is not what was stored: it is counted, and gone from DRAM."""

    def poll(self) -> list[LoadResult]:
        """Finished loads since the last call; also lets stores and demotions advance."""

    def take_arrived(self, job_id: int) -> LoadResult:
        """End a load that was not delivered: its leading pages that are there now, and no others.

        `complete_load` is due for them as for any other.
        """

    def complete_load(self, job_id: int) -> None:
        """Unpin what a finished (or cancelled) job held."""

    def cancel_load(self, job_id: int) -> None:
        """Forget a job; its pins are released when its I/O has ended."""

    @property
    def codec_numerics(self) -> str:
        """The numerics tag of what a lossy codec gives back, empty without one."""

    def store(
        self,
        key: TierKey,
        page: np.ndarray,
        num_slices: int,
        coded: CodedRow | None = None,
        facts: PageFacts | None = None,
    ) -> bool:
        """Copy a page (uint8 [page_bytes], read before return) down; False if no tier took it.

        `coded`: what a lossy codec may make of it, and the key of that. `facts`: what is known of
        it, for whoever places it.
        """

    def keep(self, keys: Sequence[TierKey], seconds: float) -> None:
        """Evict these keys last for so long, wherever they lie or will lie."""

    def drop_private(self, request_id: str) -> None:
        """Forget every private entry of a request."""

    def clear(self) -> None:
        """Forget everything (tiers stay open)."""
