"""Prompt caching: which prefixes somebody asked to keep, and until when.

    keys of a prompt's blocks | k0 | k1 | k2 | k3 | k4 | k5 | k6 |
    entry of 1 h, ends at k2  |<------------>|
    entry of 5 min, ends at k5|<------------------------>|            k6: nobody asked for it

An entry is known by the key of its last block. Its blocks stay in HBM while it lives, unless
nothing else can go; where they lie is the pool's and the tiers' business. Time is the engine's.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.cache.keys import PrefixKey
from workbench.cache_control import LIFETIMES_S
from workbench.clock import Clock
from workbench.request import Request

REMEMBERED = 4096  # entries that have expired, to explain misses


@dataclass
class _Entry:
    """A prefix that is kept: the keys of its blocks, the lifetime a use gives it, and its end."""

    chain: tuple[PrefixKey, ...]
    lifetime_s: float
    expires_s: float


class Lifetimes:
    """What was marked, by chain key: whatever the tenant, the key tells (it holds the salt)."""

    def __init__(self, clock: Clock) -> None:
        self.min_tokens = 1  # shorter prefixes are not kept, as with Anthropic
        self._clock = clock
        self._entries: dict[PrefixKey, _Entry] = {}
        self._until: dict[PrefixKey, float] = {}  # of every block: the latest end of an entry
        self._expired: OrderedDict[PrefixKey, None] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever marked, or all of it was forgotten."""
        return not self._entries

    def __len__(self) -> int:
        return sum(entry.expires_s > self._clock.now_s() for entry in self._entries.values())

    # ---- questions

    def keeps(self, key: PrefixKey) -> bool:
        """Whether the block of a chain key belongs to an entry that lives."""
        return self.kept_for_s(key) > 0

    def kept_for_s(self, key: PrefixKey) -> float:
        """Seconds for which the block of a chain key is kept yet; 0 where nobody asked for it."""
        return max(0.0, self._until.get(key, 0.0) - self._clock.now_s())

    def left_s(self, key: PrefixKey) -> float | None:
        """Seconds that the entry which ends at a block has left; None if there is none."""
        entry = self._entries.get(key)
        left = entry.expires_s - self._clock.now_s() if entry else 0.0
        return left if left > 0 else None

    def reach(self, chain: Sequence[PrefixKey]) -> int:
        """Blocks of the longest living entry that a text begins with."""
        for count in range(len(chain), 0, -1):
            if self.left_s(chain[count - 1]) is not None:
                return count
        return 0

    def has_expired(self, chain: Sequence[PrefixKey]) -> bool:
        """Whether a prefix of the text was kept once and is no more."""
        return any(
            key in self._expired or (key in self._entries and self.left_s(key) is None)
            for key in chain
        )

    # ---- what happens

    def use(self, chain: Sequence[PrefixKey]) -> None:
        """A request read these blocks: entries within them live on from now."""
        for key in chain:
            if self.left_s(key) is not None:
                self._renew(self._entries[key])

    def reached(
        self, request: Request, chain: Sequence[PrefixKey], num_pages: int, block_size: int
    ) -> None:
        """So many leading blocks of a request can be found: keep what its breakpoints ask for."""
        while request.num_marked < len(request.breakpoints):
            end, ttl = request.breakpoints[request.num_marked]
            pages = end // block_size
            if pages > num_pages:
                return
            request.num_marked += 1
            if end < self.min_tokens or not pages:
                continue
            self._keep(tuple(chain[:pages]), LIFETIMES_S[ttl])
            known = request.num_settled_tokens or 0
            request.num_created_tokens[ttl] = request.num_created_tokens.get(ttl, 0) + max(
                0, pages * block_size - known
            )
            request.num_settled_tokens = max(known, pages * block_size)

    def _keep(self, chain: tuple[PrefixKey, ...], lifetime_s: float) -> None:
        """A new entry, or a longer lifetime for one that is there."""
        self._forget_expired()
        entry = self._entries.get(chain[-1])
        if entry is None:
            entry = self._entries[chain[-1]] = _Entry(chain, lifetime_s, 0.0)
            self._expired.pop(chain[-1], None)
        entry.lifetime_s = max(entry.lifetime_s, lifetime_s)
        self._renew(entry)

    def _renew(self, entry: _Entry) -> None:
        entry.expires_s = max(entry.expires_s, self._clock.now_s() + entry.lifetime_s)
        for key in entry.chain:
            self._until[key] = max(self._until.get(key, 0.0), entry.expires_s)

    def _forget_expired(self) -> None:
        now = self._clock.now_s()
        gone = [key for key, entry in self._entries.items() if entry.expires_s <= now]
        for key in gone:
            del self._entries[key]
            self._expired[key] = None
        for _ in range(len(self._expired) - REMEMBERED):
            self._expired.popitem(last=False)
        if gone:
            self._until = {key: until for key, until in self._until.items() if until > now}
