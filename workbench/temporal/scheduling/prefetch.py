"""How long a request waits for what the tiers below hold of it (SGLang HiCache's three policies).

wait: until it is there. timeout: at most a base time and a share for each 1,024 tokens.
best_effort: not at all; what lies in DRAM is taken, and the rest comes up meanwhile.
"""

from dataclasses import dataclass, field

from workbench.cache.keys import PrefixKey
from workbench.cache.tier import KVHierarchy

BASE_S, PER_KI_S, MOST_S = 2.0, 0.1, 30.0  # HiCache's defaults


@dataclass
class Prefetch:
    """The policy, and which requests have pages coming up without waiting for them."""

    hierarchy: KVHierarchy
    policy: str = "wait"
    _running: set[str] = field(default_factory=set)

    @property
    def waits(self) -> bool:
        """Whether requests wait at all."""
        return self.policy != "best_effort"

    def most_s(self, num_tokens: int) -> float | None:
        """Seconds a request may wait for so many tokens; None where the policy sets no time."""
        return (
            min(BASE_S + PER_KI_S * num_tokens / 1024, MOST_S) if self.policy == "timeout" else None
        )

    def at_hand(self, request_id: str, keys: list[PrefixKey]) -> list[PrefixKey]:
        """The keys to load now; without waiting those in DRAM, and the rest comes up meanwhile."""
        count = len(keys) if self.waits else self.hierarchy.num_at_hand(keys)
        if count < len(keys) and request_id not in self._running:
            self._running.add(request_id)
            self.hierarchy.submit_load(keys[count:])  # for whoever is admitted after that
        return keys[:count]

    def forget(self, request_id: str) -> None:
        """A request is admitted or over."""
        self._running.discard(request_id)
