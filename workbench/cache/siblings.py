"""Blocks of tokens that continue the same prefix, in order, so that the closest is beside."""

import bisect
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
Tokens = tuple[int, ...]


class Siblings(Generic[T]):
    """Maps blocks of tokens to what they stand for; in order, neighbours share most tokens.

    The order is made when it is asked for first: without partial hits nobody does.
    """

    __slots__ = ("_items", "_sorted")

    def __init__(self) -> None:
        self._items: dict[Tokens, T] = {}
        self._sorted: list[Tokens] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def add(self, block: Tokens, item: T) -> None:
        """One more block; it must be new."""
        if block in self._items:
            raise ValueError("two rows continue the same prefix with the same tokens")
        self._items[block] = item
        if self._sorted is not None:
            bisect.insort(self._sorted, block)

    def drop(self, block: Tokens) -> None:
        """A block is gone."""
        del self._items[block]
        if self._sorted is not None:
            del self._sorted[bisect.bisect_left(self._sorted, block)]

    def get(self, block: Tokens) -> T | None:
        """What exactly this block stands for."""
        return self._items.get(block)

    def items(self) -> list[tuple[Tokens, T]]:
        """All of them."""
        return list(self._items.items())

    def closest(self, wanted: Tokens) -> tuple[T, int] | None:
        """The block with most leading tokens in common with `wanted`, and how many (at least 1)."""
        if self._sorted is None:
            self._sorted = sorted(self._items)
        at = bisect.bisect_left(self._sorted, wanted)
        found, most = None, 0
        for block in self._sorted[max(0, at - 1) : at + 1]:
            common = common_prefix(block, wanted)
            if common > most:
                found, most = block, common
        return None if found is None else (self._items[found], most)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
