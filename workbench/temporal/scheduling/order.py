"""In which order waiting requests are tried, and which running one is preempted first."""

from collections.abc import Sequence
from typing import Any, Protocol

from workbench.request import Request

MAX_DISPLACED = 8  # times that blocks are taken from a request before it lets earlier ones end


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


def must_wait(request: Request, running: Sequence[Request], order: OrderPolicy) -> bool:
    """Whether a request that lost its blocks too often would run behind one that may take them.

    Admitted alone or before all others it is no victim, so that thrash has an end for each request
    (vLLM #25538).
    """
    if request.num_displaced < MAX_DISPLACED:
        return False
    mine = order.key(request, 0)
    return any(order.key(other, 0) < mine for other in running)
