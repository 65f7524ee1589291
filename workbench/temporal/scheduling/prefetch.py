"""How long a request waits for what the tiers below hold of it (SGLang HiCache's three policies).

wait: until it is there. timeout: at most a base time and a share for each 1,024 tokens; what has
arrived by then is used. best_effort: not at all; what lies in DRAM is taken, and the rest comes up
meanwhile.
"""

import math
from dataclasses import dataclass, field

from workbench.cache.keys import PrefixKey
from workbench.cache.tier import KVHierarchy


@dataclass(frozen=True)
class Patience:
    """Seconds of `timeout`: a base, a share for each 1,024 tokens, and the most (HiCache's)."""

    base_s: float = 2.0
    per_ki_s: float = 0.1
    most_s: float = 30.0

    def for_tokens(self, num_tokens: int) -> float:
        """Seconds for so many tokens."""
        return min(self.base_s + self.per_ki_s * num_tokens / 1024, self.most_s)


@dataclass
class Prefetch:
    """The policy, and which requests have pages coming up without waiting for them."""

    hierarchy: KVHierarchy
    policy: str = "wait"
    patience: Patience = Patience()
    _running: set[str] = field(default_factory=set)

    @property
    def waits(self) -> bool:
        """Whether requests wait at all."""
        return self.policy != "best_effort"

    def most_s(self, num_tokens: int) -> float | None:
        """Seconds a request may wait for so many tokens; None where the policy sets no time."""
        return self.patience.for_tokens(num_tokens) if self.policy == "timeout" else None

    def at_hand(self, request_id: str, keys: list[PrefixKey]) -> list[PrefixKey]:
        """The keys to load now; without waiting those in DRAM, and the rest comes up meanwhile."""
        count = len(keys) if self.waits else self.hierarchy.lookups.num_at_hand(keys)
        if count < len(keys) and request_id not in self._running:
            self._running.add(request_id)
            self.hierarchy.submit_load(
                keys[count:], compute_s=math.inf, ahead=True
            )  # for whoever is admitted after that
        return keys[:count]

    def forget(self, request_id: str) -> None:
        """A request is admitted or over."""
        self._running.discard(request_id)
