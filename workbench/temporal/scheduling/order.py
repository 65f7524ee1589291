"""In which order waiting requests are tried, and which running one is preempted first."""

from typing import Any, Protocol

from workbench.request import Request


class OrderPolicy(Protocol):
    """Smaller keys run first; the running request with the largest key is preempted first."""

    needs_hits: bool

    def key(self, request: Request, num_hit_tokens: int) -> tuple[Any, ...]:
        """Sort key of a request; `num_hit_tokens` is 0 unless `needs_hits`."""


class Fcfs:
    """First come, first served; a preempted request keeps its turn (vLLM #41951)."""

    needs_hits = False

    def key(self, request: Request, num_hit_tokens: int) -> tuple[Any, ...]:
        """Order of arrival."""
        return (request.sequence_number,)


class Priority:
    """Smaller `priority` first, then arrival (vLLM's priority policy)."""

    needs_hits = False

    def key(self, request: Request, num_hit_tokens: int) -> tuple[Any, ...]:
        """Priority, then order of arrival."""
        return (request.spec.priority, request.sequence_number)


class LongestPrefixFirst:
    """The request with most tokens in HBM first (SGLang's `lpm`), then arrival."""

    needs_hits = True

    def key(self, request: Request, num_hit_tokens: int) -> tuple[Any, ...]:
        """Most hit tokens, then order of arrival."""
        return (-num_hit_tokens, request.sequence_number)
