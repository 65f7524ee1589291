"""Prompt caching as a caller asks for it: breakpoints, lifetimes, and what it is told afterwards.

The contract is Anthropic's: up to four breakpoints a request, lifetimes of five minutes and of one
hour that begin anew at each use, the longer ones before the shorter ones, and usage in tokens read
and created. Positions are tokens or messages here, where there it is content blocks.
"""

from collections.abc import Sequence

import msgspec

from workbench.errors import RequestError

MAX_BREAKPOINTS = 4
LIFETIMES_S = {"5m": 300.0, "1h": 3600.0}


class CacheBreakpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prompt up to here is to be kept: its first `at` tokens, or all up to `message`.

    `message` counts the request's messages from 0. `ttl`: `5m` or `1h`, anew at each use.
    """

    at: int | None = None
    message: int | None = None
    ttl: str = "5m"

    def __post_init__(self) -> None:
        if (self.at is None) == (self.message is None):
            raise RequestError("a cache_control breakpoint needs either at (tokens) or message")
        if self.at is not None and self.at < 1:
            raise RequestError(f"cache_control at = {self.at} is out of range: 1 token or more")
        if self.message is not None and self.message < 0:
            raise RequestError(f"cache_control message = {self.message}: messages count from 0")
        if self.ttl not in LIFETIMES_S:
            allowed = " or ".join(LIFETIMES_S)
            raise RequestError(f"cache_control ttl = {self.ttl!r} is no lifetime: give {allowed}")

    @property
    def place(self) -> int:
        """Tokens or messages, whichever it counts."""
        return self.at if self.at is not None else self.message or 0


class CacheUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request's prompt tokens came from: read, written to be kept, or neither.

    The three add up to the prompt. `cache_creation` splits what was written by lifetime.
    """

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    cache_creation: dict[str, int]  # ephemeral_5m_input_tokens, ephemeral_1h_input_tokens


class BreakpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A breakpoint as a viewer sees it; `left_s` None: nothing is kept for it (yet, or no more)."""

    at: int
    ttl: str
    left_s: float | None


def moved_breakpoints(points: Sequence[CacheBreakpoint], by: int) -> list[CacheBreakpoint]:
    """The same places once `by` messages were put in front; those in tokens stay."""
    replace = msgspec.structs.replace
    return [
        point if point.message is None else replace(point, message=point.message + by)
        for point in points
    ]


def check_breakpoints(points: Sequence[CacheBreakpoint], num_messages: int | None) -> None:
    """Raise RequestError for breakpoints that no prompt could have.

    `num_messages`: of the request, None if it is not made of messages.
    """
    if len(points) > MAX_BREAKPOINTS:
        raise RequestError(
            f"cache_control has {len(points)} breakpoints: at most {MAX_BREAKPOINTS} are allowed"
        )
    by_message = [point for point in points if point.message is not None]
    if by_message and len(by_message) < len(points):
        raise RequestError("cache_control mixes at and message: count all breakpoints in one way")
    for point in by_message:
        if num_messages is None:
            raise RequestError("cache_control names a message, but there are none: give at instead")
        if point.place >= num_messages:
            raise RequestError(
                f"cache_control message = {point.place} is beyond the prompt: it has "
                f"{num_messages} messages, counted from 0"
            )
    _check_order(sorted(points, key=lambda point: point.place))


def _check_order(points: Sequence[CacheBreakpoint]) -> None:
    for one, other in zip(points, points[1:], strict=False):
        if one.place == other.place:
            raise RequestError(f"cache_control has two breakpoints at {one.place}: give one")
        if LIFETIMES_S[one.ttl] < LIFETIMES_S[other.ttl]:
            raise RequestError(
                f"cache_control has {one.ttl} at {one.place} before {other.ttl} at {other.place}: "
                "longer lifetimes come before shorter ones"
            )
